"""Telemetry joined to blocks by time, the share that lower clocks cost, and energy."""

import functools
import operator
import random
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.loss import loss
from scaling.analysis.decompose.quantities import SHOWN
from scaling.analysis.quality.clocks import DeviceSamples, warnings, with_telemetry
from scaling.analysis.results import Throttled
from scaling.analysis.statistics.rounds import Rounds
from scaling.settings.schedule import PLAIN, PROBE

S = 10**9
THERMAL = 0x40


def blocks():
    """bare_one, then plain, in each of four rounds, three seconds each."""
    rows = []
    for number in range(4):
        for index, arm in enumerate(("bare_one", "plain")):
            begin = (2 * number + index) * 3 * S
            rows.append((0, 0, number, 2, arm, begin, begin + 3 * S - 1))
    names = ["launch", "rank", "round", "world_size", "arm", "host_begin_ns", "host_end_ns"]
    return pl.DataFrame(rows, schema=names, orient="row")


def samples(alone=2000, together=1800, reasons=0, power=(300.0, 500.0)):
    """One a second; the first of a block still tells the power of the block before."""
    inside = [(t // 3) % 2 for t in range(24)]
    before = [((t - 1) // 3) % 2 for t in range(24)]
    return DeviceSamples.of(
        [t * S for t in range(24)],
        sm_mhz=[together if second else alone for second in inside],
        reasons=[reasons if second else 0 for second in inside],
        power_w=[power[inside[t] if t % 3 else before[t]] for t in range(24)],
    )


def clocked(**options):
    return with_telemetry(blocks(), {(0, 0): samples(**options)})


def test_a_block_has_the_mean_clock_of_its_own_samples():
    assert clocked()["sm_mhz"].to_list() == [2000, 1800] * 4


def test_means_and_bits_are_those_of_the_samples_one_by_one():
    """Against plain loops, with samples that lack figures, and blocks between two samples."""
    rng = random.Random(3)
    times = sorted(rng.sample(range(60 * S), 50))
    figures = ([None, 1400, 1800, 1979], [None, 0, 1, THERMAL], [None, 212.5, 700.1])
    mhz, reasons, watts = ([rng.choice(some) for _ in times] for some in figures)
    drawn = [*zip(times, mhz, reasons, watts, strict=True)]
    spans = [(begin, begin + rng.choice([S // 9, S, 5 * S])) for begin in rng.sample(range(60 * S), 40)]
    frame = pl.DataFrame(
        [(0, k % 2, *span) for k, span in enumerate(spans)],
        schema=["launch", "rank", "host_begin_ns", "host_end_ns"],
        orient="row",
    )
    found = with_telemetry(
        frame, {(0, 0): DeviceSamples.of(times, sm_mhz=mhz, reasons=reasons, power_w=watts)}
    )
    for (begin, end), row in zip(
        spans[::2], found.filter(pl.col("rank") == 0).iter_rows(named=True), strict=True
    ):
        inside = [one for one in drawn if begin <= one[0] <= end]
        near = inside or [min(drawn, key=lambda one: abs(one[0] - (begin + end) // 2))]
        bits = [bits for _, _, bits, _ in near if bits is not None]
        mhz = [mhz for _, mhz, _, _ in inside if mhz is not None]
        watts = [watts for t, _, _, watts in inside if watts is not None and t >= begin + S]
        assert row["sm_mhz"] == (pytest.approx(sum(mhz) / len(mhz)) if mhz else None)
        assert row["power_w"] == (pytest.approx(sum(watts) / len(watts)) if watts else None)
        assert row["reasons"] == (functools.reduce(operator.or_, bits) if bits else None)
        assert row["throttled"] == (bool(row["reasons"] & THERMAL) if bits else None)
    assert found.filter(pl.col("rank") == 1)["sm_mhz"].null_count() == 20


def test_power_of_the_second_before_a_block_is_not_the_blocks():
    assert clocked()["power_w"].to_list() == [300.0, 500.0] * 4


def test_blocks_that_were_throttled_are_counted_and_their_ranks_named():
    assert warnings(clocked(reasons=THERMAL)) == (
        "throttled: 4 of 8 blocks ran while their device slowed itself down (rank 0)",
    )
    assert warnings(clocked(reasons=0x4)) == ()


def test_a_block_shorter_than_the_period_says_what_the_sample_next_to_it_says_and_has_no_clock():
    begin = pl.col("host_begin_ns")
    short = blocks().with_columns(host_begin_ns=begin + S // 3, host_end_ns=begin + S // 2)
    found = with_telemetry(short, {(0, 0): samples(reasons=THERMAL)})
    assert found["throttled"].to_list() == [False, True] * 4
    assert found["sm_mhz"].null_count() == found["power_w"].null_count() == 8


def test_without_telemetry_nothing_is_known():
    nothing = with_telemetry(blocks(), {})
    assert {nothing[name].null_count() for name in ("sm_mhz", "power_w", "reasons", "throttled")} == {8}


# In the waterfall


def told(run, mhz, watts=400.0, throttled=(), device="0/{rank}"):
    """The run had its devices told their clocks: `mhz` by arm, elsewhere 2000; `device`: a rank's."""
    rows = run.tables.blocks.select("arm", "rank").iter_rows()
    shown = [
        (
            float(mhz.get(arm, 2000.0)),
            watts,
            THERMAL if rank in throttled else 0,
            rank in throttled,
            device.format(rank=rank) or None,
        )
        for arm, rank in rows
    ]
    extra = pl.DataFrame(shown, schema=SHOWN, orient="row")
    return run.analyze(replace(run.tables, blocks=run.tables.blocks.hstack(extra)))


def in_part(run, **told):
    """The same, with a figure that is told of some blocks alone; no power is told but where it is that figure."""
    usual = {"sm_mhz": pl.lit(2000.0), "power_w": pl.lit(None, pl.Float64), "reasons": pl.lit(0, pl.Int64)}
    usual |= {"throttled": pl.lit(value=False), "device": pl.lit(None, pl.String)}
    return run.analyze(replace(run.tables, blocks=run.tables.blocks.with_columns(**usual | told)))


BESIDE = ("bare_all", "ddp_solo", PLAIN, PROBE)


@pytest.fixture(scope="module")
def run(measure, cluster):
    """Neighbours cost 10 % of compute, and no overlap."""
    return measure(cluster.Truth(world_sizes=(1, 2), neighbours=1.10, overlap=1.0, rounds=8))


def loss_of(analysis, n=2):
    return next(p for p in analysis.points if p.world_size == n).loss


def test_what_lower_clocks_explain_is_taken_out_of_neighbours(run):
    """The clock is 4 % lower beside others: of the 10 % that compute takes longer, that is 0.04 x 1.10."""
    before = run.point(2).loss
    after = loss_of(told(run, dict.fromkeys(BESIDE, 1920.0)))
    share = after.clocks.value / before.neighbours.value
    assert share == pytest.approx(0.04 * 1.10 / 0.10, rel=0.05)
    assert after.clocks.value + after.neighbours.value == pytest.approx(before.neighbours.value)
    assert after.unexplained == before.unexplained
    assert after.clocks.low > 0


def test_clocks_explain_no_more_than_the_loss_itself(run):
    """Half the clock and 10 % more time: the work waits for memory, and the rest of the drop costs nothing."""
    after = loss_of(told(run, dict.fromkeys(BESIDE, 1000.0)))
    assert after.clocks.value == pytest.approx(run.point(2).loss.neighbours.value)
    assert after.neighbours.value == pytest.approx(0.0, abs=1e-9)


def test_equal_clocks_cost_nothing_and_no_telemetry_is_unknown(run):
    assert loss_of(told(run, {})).clocks.value == 0
    assert run.point(2).loss.clocks is None
    assert run.point(2).clocks is None
    assert run.point(2).cost.samples_per_joule is None


def test_clocks_seen_in_too_few_rounds_change_nothing(run):
    found = loss_of(in_part(run, sm_mhz=pl.when(pl.col("round") < 2).then(pl.lit(1900.0))))
    assert found.clocks is None
    assert found.neighbours == run.point(2).loss.neighbours


def loss_of_uneven_rounds(drop):
    """Neighbours cost 9 % in six rounds of sixteen and 1 % in the others; `drop`: of the clock, by such a round."""
    disturbed = np.arange(16) % 8 < 3
    plain = np.full(16, 100.0)
    values = {"bare_one": plain, "plain": plain, "bare_all": np.where(disturbed, 109.0, 101.0)}
    values |= {f"{arm}.{phase}": 0 * plain for arm in ("bare_one", "bare_all") for phase in ("input", "host")}
    values["clocks.neighbours"] = np.where(disturbed, drop[True], drop[False])
    rounds = Rounds(values, np.zeros(16, dtype=np.int64))
    return loss(
        rounds,
        2,
        lambda m: m["bare_one"] / m["plain"],
        None,
        strong=False,
        sent=(),
        own_loop=True,
        has_details=True,
    )


def test_what_few_rounds_make_is_no_sure_loss_by_neighbours_where_clocks_explain_a_part_of_it():
    lost = loss_of_uneven_rounds({True: 0.002, False: 0.002})
    assert lost.neighbours.value + lost.clocks.value == pytest.approx(0.04)
    assert lost.neighbours.low == 0
    assert lost.clocks.low > 0


def test_lower_clocks_of_few_rounds_are_no_sure_loss():
    lost = loss_of_uneven_rounds({True: 0.06, False: 0.001})
    assert lost.clocks.value > 0.02
    assert lost.clocks.low == 0


def test_what_communication_takes_from_the_clock_is_taken_out_of_overlap(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(2,), neighbours=1.0, overlap=1.10, rounds=8))
    before = run.point(2).loss
    after = loss_of(told(run, dict.fromkeys((PLAIN, PROBE), 1900.0)))
    parts = run.point(2).parts_ms
    computing = (parts.forward.value + parts.backward.value) / run.point(2).arms_ms.probe.value
    assert after.clocks.value == pytest.approx(0.05 * computing, rel=0.02)
    assert after.clocks.value + after.overlap.value == pytest.approx(before.overlap.value)


def test_a_verdict_names_the_clocks_with_their_share(run):
    analysis = told(run, dict.fromkeys(BESIDE, 1840.0), throttled={0, 1})
    (verdict,) = [v for v in analysis.verdicts if v.cause == "clocks"]
    assert verdict.share.value > 0.03
    said = " ".join(verdict.evidence)
    assert "2000 MHz alone, 1840 MHz beside the others" in said
    assert "rank 1's device slowed itself down in" in said
    assert "hw_thermal" in said
    assert verdict.try_


def test_a_late_rank_whose_device_throttles_is_told_so(measure, cluster):
    late = cluster.Straggler(rank=1, extra_ns=8e6, phase="backward", alone=True)
    run = measure(cluster.Truth(world_sizes=(4,), stragglers=(late,), rounds=8))
    analysis = told(run, {}, throttled={1})
    (verdict,) = [v for v in analysis.verdicts if v.cause == "straggler"]
    assert any("rank 1's device slowed itself down" in line for line in verdict.evidence)
    seen = analysis.points[0].clocks.throttled
    assert [(t.rank, t.reasons) for t in seen] == [(1, ("hw_thermal",))]
    assert isinstance(seen[0], Throttled)


# Energy


def test_energy_is_that_of_all_ranks_in_plain_steps(run):
    point = next(p for p in told(run, {}, watts=250.0).points if p.world_size == 2)
    assert point.cost.power_w.value == pytest.approx(500.0)
    assert point.cost.samples_per_joule.value == pytest.approx(point.samples_per_s.value / 500.0)


@pytest.mark.parametrize(("device", "boards"), [("0/{rank}", 2), ("0/0", 1), ("", 2)])
def test_the_board_of_a_device_that_ranks_share_is_counted_once(run, device, boards):
    """As of Gloo ranks on one GPU, each of which is told its whole power; where nothing is told each has its own."""
    point = next(p for p in told(run, {}, watts=250.0, device=device).points if p.world_size == 2)
    assert point.cost.power_w.value == pytest.approx(250.0 * boards)
    assert point.cost.samples_per_joule.value == pytest.approx(point.samples_per_s.value / (250.0 * boards))


def test_power_that_one_rank_does_not_tell_is_unknown(run):
    point = in_part(run, power_w=pl.when(pl.col("rank") == 0).then(pl.lit(300.0))).points[-1]
    assert point.cost.power_w is None
