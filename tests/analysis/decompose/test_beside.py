"""Detailed steps of two groups that share a host's link: what counts as transfer, and what as skew."""

from types import SimpleNamespace

import polars as pl
import pytest
from support.unit_steps import MS, sent_row, served, step_row

from scaling.analysis.decompose.sharded import read_sharded
from scaling.analysis.network.shared_link import APART, SharedLink, links
from scaling.settings.parallel import Mesh
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES

STEPS, COMPUTE_MS, BYTES_MS, WITHIN_MS = 4, 6.0, 10.0, 1.0
MESH = Mesh(replicate=2, shard=2)
BACKWARD = PHASES.index("backward")
KEYS = {key: axis for axis, key in MESH.keys().items()}


def of(axis, rank):
    return next(group for group in MESH.axes()[axis] if rank in group)


def link(begin):
    """When each of two groups is done that need `BYTES_MS` of one link, with equal parts of it."""
    first, second = sorted(begin)
    alone = min(second - first, BYTES_MS)
    left = BYTES_MS - alone
    if not left:
        ends = {first: first + BYTES_MS, second: second + BYTES_MS}
    else:
        ends = {first: second + 2 * left, second: second + 2 * left + alone}
    return [ends[at] for at in begin]


def read(late_ms, beside):
    """Ranks compute (the second of each host longer), reduce with their copies, and gather within the host."""
    now, steps, rows = [1000.0] * 4, [], []
    for step in range(STEPS):
        begin, waits = list(now), [0.0] * 4
        now = [at + COMPUTE_MS + late_ms * (rank % 2) for rank, at in enumerate(now)]
        for seq, (kind, axis) in enumerate((("all_reduce", "replicate"), ("all_gather", "shard"))):
            came = list(now)
            released = [max(came[r] for r in of(axis, rank)) for rank in range(4)]
            now = link(released[:2]) * 2 if axis == "replicate" else [at + WITHIN_MS for at in released]
            for rank in range(4):
                waits[rank] += now[rank] - came[rank]
                what = {"seq": seq, "kind": KINDS.index(kind), "phase": BACKWARD, "unit": 0, "bytes": 1000}
                what["group"] = MESH.keys()[axis]
                rows.append(sent_row(step, rank, what, (came[rank], now[rank]) * 2))
        steps += [step_row(step, rank, begin[rank], now[rank], backward=waits[rank]) for rank in range(4)]
    by_replica = served(
        "gloo",
        groups=lambda rank, key: of(KEYS[key], rank),
        wire_of=lambda key: int(KEYS[key] == "replicate"),
        beside=beside,
    )
    return read_sharded(pl.DataFrame(steps), pl.DataFrame(rows).lazy(), MESH, by_replica)


def merged(found, *names):
    return [found.merged[name][0, 0] / MS for name in names]


TERMS = ("kind.0.transfer", "bucket_transfer", "bucket_skew", "busy")
HOSTS = SharedLink(hosts=(0, 0, 1, 1))


@pytest.mark.parametrize("late_ms", [0.5, 4.0, 30.0])
def test_transfer_is_what_the_link_carries_and_skew_what_it_stood_still(late_ms):
    """Both groups' bytes take 20 ms of the link. The early ranks wait while it carries nothing, if at all."""
    transfer, exposed, skew, busy = merged(read(late_ms, HOSTS), *TERMS)
    idle = max(0.0, late_ms - BYTES_MS)
    assert transfer == pytest.approx(2 * BYTES_MS)
    assert busy == pytest.approx(2 * BYTES_MS + WITHIN_MS)
    # the late ranks come when the link has carried for as long as they are late
    late = 2 * BYTES_MS - min(late_ms, BYTES_MS)
    assert exposed == pytest.approx((2 * BYTES_MS + late) / 2 + WITHIN_MS)
    assert skew == pytest.approx(idle / 2)


@pytest.mark.parametrize("late_ms", [0.5, 4.0, 30.0])
def test_what_a_late_rank_costs_and_what_the_link_costs_make_up_the_step(late_ms):
    (cycle,) = read(late_ms, HOSTS).cycles
    idle = max(0.0, late_ms - BYTES_MS)
    assert cycle.replay.period() / MS == pytest.approx(COMPUTE_MS + 2 * BYTES_MS + idle + WITHIN_MS)
    without = cycle.replay.without([1, 3])
    assert without.period() / MS == pytest.approx(2 * BYTES_MS + COMPUTE_MS + WITHIN_MS)


def test_ranks_with_links_of_their_own_are_as_they_were():
    transfer, exposed, skew, _ = merged(read(4.0, APART), *TERMS)
    assert transfer == pytest.approx(2 * BYTES_MS - 4)  # each for itself
    assert exposed == pytest.approx(2 * BYTES_MS - 4 + WITHIN_MS)
    assert skew == pytest.approx(4 / 2)


@pytest.mark.parametrize(("backend", "hosts"), [("gloo", (0, 0, 1, 1)), ("nccl", ())])
def test_a_hosts_back_end_sends_over_one_link(backend, hosts):
    ranks = [SimpleNamespace(rank=rank, host=f"node{rank // 2}") for rank in (2, 0, 3, 1)]
    plan = SimpleNamespace(ranks=4, spec=SimpleNamespace(topology=SimpleNamespace(backend=backend)))
    found = links(SimpleNamespace(ranks=ranks), plan).hosts
    assert len(set(found)) == len(set(hosts))
    assert (
        [found[a] == found[b] for a, b in ((0, 1), (2, 3), (1, 2))] == [True, True, False] if found else True
    )
