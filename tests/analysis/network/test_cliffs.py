"""What bytes do not explain in a curve, and nothing else."""

import random

import pytest
from support.results import spec

from scaling.analysis.network.cliffs import Timed, cliffs, warnings
from scaling.analysis.results import Cliff, Fabric, FabricLevel

KIB, MIB = 2**10, 2**20


def sweep(time, noise=0.0, rng=None, factor=2, largest=29):
    sizes = [2**k for k in range(10, largest, {2: 1, 4: 2}[factor])]
    rng = rng or random.Random(0)
    found = []
    for size in sizes:
        each = [time(size) * (1 + noise * rng.uniform(-1, 1)) for _ in range(2)]
        found.append(Timed(bytes=size, low=min(each), time=sum(each) / 2, high=max(each)))
    return found


def protocols(size):
    """LL to 64 KiB, LL128 to 4 MiB, Simple above: half, then nearly all of the bandwidth, each with its latency."""
    if size <= 64 * KIB:
        return 8 + size / 5e3
    if size <= 4 * MIB:
        return 14 + size / 9.4e3
    return 30 + size / 1e4


def keys(found):
    return [(c.kind, c.from_bytes, c.to_bytes) for c in found]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("factor", [2, 4])
def test_changes_of_protocol_and_noise_make_no_cliff(seed, factor):
    assert cliffs(sweep(protocols, 0.05, random.Random(seed), factor)) == ()


def test_a_larger_message_that_takes_less_time_is_named():
    found = cliffs(sweep(lambda s: protocols(s) * (3 if 64 * KIB < s < MIB else 1)))
    assert keys(found) == [("falls", 512 * KIB, MIB)]
    assert found[0].factor == pytest.approx(protocols(MIB) / protocols(512 * KIB) / 3)


def test_a_path_that_breaks_down_is_named_with_its_factor():
    found = cliffs(sweep(lambda s: protocols(s) * (5 if s >= 128 * MIB else 1)))
    assert keys(found) == [("jumps", 64 * MIB, 128 * MIB)]
    assert found[0].factor == pytest.approx(10, rel=0.01)


def test_falls_in_a_row_are_one():
    slow = {64 * KIB: 20.0, 128 * KIB: 40.0, 256 * KIB: 60.0, 512 * KIB: 50.0, MIB: 40.0}
    found = cliffs(sweep(lambda s: slow.get(s, 5 + s / 3e4)))
    assert keys(found) == [("falls", 256 * KIB, MIB)]
    assert found[0].factor == pytest.approx(40 / 60)


def test_what_may_be_chance_is_not_named():
    points = sweep(protocols)
    at = next(k for k, p in enumerate(points) if p.bytes == MIB)
    wide = Timed(
        bytes=MIB, low=points[at - 1].low * 0.9, time=points[at - 1].time * 0.9, high=points[at].high * 2
    )
    assert cliffs([*points[:at], wide, *points[at + 1 :]]) == ()


def test_small_messages_are_latency_whatever_they_take():
    assert cliffs(sweep(lambda s: 90 if s == 2048 else protocols(s))) == ()


def test_two_times_in_turns_are_one_unsteady_range():
    points = sweep(lambda s: protocols(s) * (6 if s.bit_length() % 2 and 64 * KIB <= s < 8 * MIB else 1))
    (found,) = cliffs(points)
    assert found.kind == "unsteady"
    assert 4 < found.factor < 6  # the larger message's own bytes are no cliff


@pytest.mark.parametrize(("collective", "buckets"), [("all_reduce", True), ("all_gather", False)])
def test_only_messages_that_ddp_makes_are_made_larger_by_its_buckets(collective, buckets):
    cliff = Cliff(collective=collective, kind="falls", from_bytes=MIB, to_bytes=2 * MIB, factor=0.5)
    level = FabricLevel(
        world_size=2,
        name="host",
        alpha_us=None,
        busbw_gbit_s=None,
        nominal_gbit_s=None,
        curve=(),
        cliffs=(cliff,),
    )
    (line,) = warnings(Fabric(levels=(level,)), spec())
    assert ("ddp.bucket_cap_mb=2 or more" in line) is buckets
