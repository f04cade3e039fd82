"""Separate launches at several world sizes as one study: what is true of simulated loops has to come out."""

import dataclasses
import math

import numpy as np
import pytest
from support.results import about
from support.simulated_cluster import Straggler, Truth, simulate
from support.tables import collected

from scaling.analysis.about import Ending, endings
from scaling.analysis.analyze import analyze
from scaling.analysis.decompose import trials
from scaling.analysis.decompose.quantities import CallTraffic
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.quality.untracked_traffic import UNSEEN
from scaling.analysis.results import Measured, Verdict
from scaling.analysis.results.verdicts import undecided
from scaling.analysis.statistics.rounds import student
from scaling.analysis.study.size import ONE_EACH, read_size
from scaling.analysis.study.study import launch_spread, study
from scaling.errors import InputError
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.settings.parallel import Parallel
from scaling.settings.plan import OWN_LOOP
from scaling.settings.schedule import PLAIN, PROBE

TRUTH = Truth(hosts=2, rounds=6, stragglers=(Straggler(rank=1, extra_ns=6e6, phase="input"),)).without_noise()
COMPUTE_NS = TRUTH.forward_ns + TRUTH.backward_ns


def own_loop(truth, path, batch=None, launches=1):
    """A simulated run at one world size as a Probe would have left it: plain and probe blocks, no other arm."""
    simulate(truth, path)
    folder = RunFolder(path)
    plan = read_plan(folder)
    batch = plan.trials[0].batch if batch is None else batch
    trial = dataclasses.replace(plan.trials[0], batch=batch)
    spec = dataclasses.replace(plan.spec, batch_per_rank=batch)
    plan = dataclasses.replace(plan, source=OWN_LOOP, trials=(trial,), spec=spec)
    tables = collected(folder, plan)
    loop = tables.blocks["arm"].is_in([PLAIN, PROBE])
    blocks = tables.blocks.filter(loop).with_columns(batch=batch)
    keys = ["launch", "block"]
    kept = blocks.select(keys).unique()
    parts = {
        name: getattr(tables, name).join(kept, on=keys, how="semi") for name in ("steps", "buckets", "fabric")
    }
    tables = dataclasses.replace(tables, blocks=blocks, **parts)
    ending = Ending(duration_s=1.0, launches=launches, trials=endings(plan, None, tables))
    records = RunRecords(tables, plan)
    return read_size(str(path), analyze(records, ending), records)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    return [own_loop(dataclasses.replace(TRUTH, world_sizes=(n,)), folder / str(n)) for n in (1, 2)]


def launched(size, *factors):
    """The same with as many launches, each slower by a factor."""
    return dataclasses.replace(size, launch_ns=tuple(size.launch_ns[0] * factor for factor in factors))


def test_the_efficiency_is_the_ratio_of_the_steps(sizes):
    analysis, plan = study(sizes)
    alone, two = analysis.points
    steps = [size.point.step_ms.value for size in sizes]
    assert two.efficiency.value == pytest.approx(steps[0] / steps[1])
    assert two.speedup.value == pytest.approx(2 * steps[0] / steps[1])
    assert alone.efficiency.value == 1
    assert plan.spec.mode == analysis.run.mode == "weak"
    assert [t.world_size for t in plan.trials] == [1, 2]


def test_the_loss_has_the_causes_that_were_put_in(sizes):
    two = study(sizes)[0].points[1]
    step_ns = two.step_ms.value * 1e6
    slower = (TRUTH.neighbours * TRUTH.overlap - 1) * COMPUTE_NS + (TRUTH.neighbours - 1) * TRUTH.optimizer_ns
    assert two.loss.slower_compute.value * step_ns == pytest.approx(slower, rel=0.1)
    assert two.loss.straggler.value * step_ns == pytest.approx(6e6, rel=0.05)
    # the late rank's input is the straggler's alone
    assert two.loss.input.value == pytest.approx(0, abs=0.003)
    terms = [getattr(two.loss, field.name) for field in dataclasses.fields(two.loss)]
    total = sum(term.value for term in terms if term is not None)
    assert total == pytest.approx(1 - two.efficiency.value, abs=1e-9)
    assert two.loss.unexplained.value == pytest.approx(0, abs=0.02)


def test_causes_are_named_by_size_and_slower_compute_is_a_hint_with_one_launch_each(sizes):
    found = {v.cause: v for v in study(sizes)[0].verdicts}
    assert {"straggler", "slower_compute"} <= set(found)
    assert found["slower_compute"].confidence == "low"
    assert ONE_EACH in found["slower_compute"].evidence
    again = study([launched(size, 1.0, 1.001) for size in sizes])[0].verdicts
    assert next(v for v in again if v.cause == "slower_compute").confidence != "low"


def test_an_input_that_is_as_long_at_the_base_is_no_loss_of_scaling(sizes):
    slow = Verdict(cause="input", world_size=2, share=about(0.4, 0.01), confidence="high", evidence=("slow",))
    analysis = dataclasses.replace(sizes[1].analysis, verdicts=(slow,))
    two = dataclasses.replace(sizes[1], analysis=analysis)
    assert "input" not in {v.cause for v in study([sizes[0], two])[0].verdicts}
    shares = {**two.shares, "input": two.shares["input"] + 0.2, "compute": two.shares["compute"] - 0.2}
    grown = dataclasses.replace(two, shares=shares)
    (told,) = (v for v in study([sizes[0], grown])[0].verdicts if v.cause == "input")
    assert (told.confidence, told.evidence[-1]) == ("low", ONE_EACH)
    assert told.share.value == pytest.approx(0.2, abs=0.03)  # and not the whole phase
    (told,) = (
        v
        for v in study([launched(s, 1.0, 1.001) for s in (sizes[0], grown)])[0].verdicts
        if v.cause == "input"
    )
    assert told.confidence != "low"


def test_other_threads_than_at_the_base_are_said_and_make_a_hint(sizes):
    spec = dataclasses.replace(sizes[0].plan.spec, threads=8)
    base = dataclasses.replace(sizes[0], plan=dataclasses.replace(sizes[0].plan, spec=spec))
    analysis, _ = study([launched(size, 1.0, 1.001) for size in (base, sizes[1])])
    assert any("threads of a rank differ between world sizes (1, 8)" in w for w in analysis.quality.warnings)
    (slower,) = (v for v in analysis.verdicts if v.cause == "slower_compute")
    assert (slower.confidence, "other threads" in slower.evidence[-1]) == ("low", True)


def test_steps_with_a_forward_that_was_not_seen_are_undecided_for_that(sizes):
    analysis = dataclasses.replace(sizes[1].analysis, verdicts=(undecided(2, UNSEEN),))
    shares = {**sizes[1].shares, "input": 0.5, "compute": sizes[1].shares["compute"] / 2}
    two = dataclasses.replace(sizes[1], analysis=analysis, shares=shares)
    (verdict,) = study([sizes[0], two])[0].verdicts
    assert (verdict.cause, verdict.evidence) == ("undecided", (UNSEEN,))


def test_a_late_ranks_phase_is_not_said_where_a_forward_was_not_seen(sizes, monkeypatch, tmp_path):
    assert sizes[1].point.straggler.phase == "input"
    monkeypatch.setattr(trials, "_beside", lambda *_: CallTraffic(bytes=4096, unseen_forwards=True))
    mixed = own_loop(dataclasses.replace(TRUTH, world_sizes=(2,)), tmp_path / "2")
    assert mixed.point.straggler.phase == "step"
    assert mixed.point.straggler.cost_ms.value == pytest.approx(sizes[1].point.straggler.cost_ms.value)
    (late,) = (v for v in mixed.analysis.verdicts if v.cause == "straggler")
    assert late.evidence[0].startswith(f"rank {mixed.point.straggler.rank} is late: the others wait")
    assert "DataLoader" not in str(late.try_)


def test_a_contended_run_makes_slower_compute_a_hint_and_is_said(sizes):
    quality = dataclasses.replace(sizes[0].analysis.quality, warnings=("contended: 8 of 9 blocks waited",))
    busy = dataclasses.replace(sizes[0], analysis=dataclasses.replace(sizes[0].analysis, quality=quality))
    found, _ = study([launched(size, 1.0, 1.001) for size in (busy, sizes[1])])
    slower = next(v for v in found.verdicts if v.cause == "slower_compute")
    assert slower.confidence == "low"
    assert "other programs ran during the launches at world size 1" in slower.evidence[-1]
    assert found.quality.contended == ("at 1 rank, 8 of 9 blocks waited",)


def test_one_launch_each_claims_nothing_about_other_launches(sizes):
    analysis, _ = study(sizes)
    assert analysis.study.covers == "within"
    assert analysis.study.launch_spread is None
    assert any("one launch at each world size" in line for line in analysis.quality.warnings)


def test_repeated_launches_widen_the_interval_by_their_spread(sizes):
    analysis, _ = study([launched(sizes[0], 0.95, 1.05), launched(sizes[1], 0.95, 1.05)])
    spread, degrees = launch_spread([(0.95, 1.05), (0.95, 1.05)])
    assert degrees == analysis.study.degrees == 2
    half = student(2) * spread
    assert analysis.points[1].efficiency.log_half_width == pytest.approx(half)
    assert analysis.points[1].step_ms.log_half_width == pytest.approx(half / 2**0.5)
    assert analysis.study.covers == "launches"
    assert not any("one launch at each" in line for line in analysis.quality.warnings)


@pytest.mark.parametrize("launches", [2, 3])
def test_intervals_over_launches_hold_the_truth(sizes, launches):
    """Launches that differ by 5 % (standard deviation): the efficiency of the typical launch is inside."""
    rng, held, draws = np.random.default_rng(0), 0, 200
    truth = sizes[0].point.step_ms.value / sizes[1].point.step_ms.value
    for _ in range(draws):
        drawn = [_drawn(size, np.exp(0.05 * rng.standard_normal(launches))) for size in sizes]
        held += study(drawn)[0].points[1].efficiency.holds(truth)
    assert 0.91 <= held / draws <= 0.99


def test_the_spread_is_that_of_the_launches_of_one_world_size():
    rng_like = [(1.0, 1.1), (3.0, 3.3)]  # world sizes differ by far more than launches
    assert launch_spread(rng_like)[0] == pytest.approx(math.log(1.1) / 2**0.5)
    assert launch_spread([(1.0,), (2.0,)]) == (None, 0)


def test_strong_scaling_is_seen_by_the_batch(tmp_path):
    whole = dataclasses.replace(TRUTH, stragglers=(), batch=32)
    one = own_loop(dataclasses.replace(whole, world_sizes=(1,)), tmp_path / "1", batch=32)
    two = own_loop(dataclasses.replace(whole, world_sizes=(2,)), tmp_path / "2", batch=16)
    analysis, _ = study([two, one])
    assert analysis.run.mode == "strong"
    ratio = one.point.step_ms.value / (2 * two.point.step_ms.value)
    assert analysis.points[1].efficiency.value == pytest.approx(ratio)
    assert analysis.points[1].speedup.value == pytest.approx(2 * ratio)


def test_without_world_size_one_the_smallest_is_the_base_and_the_loss_is_not_split(sizes):
    four = dataclasses.replace(sizes[1].plan.trials[0], world_size=4)
    point = dataclasses.replace(sizes[1].point, world_size=4, step_ms=about(80.0, 1.0))
    analysis = dataclasses.replace(sizes[1].analysis, points=(point,))
    larger = dataclasses.replace(
        sizes[1], plan=dataclasses.replace(sizes[1].plan, trials=(four,)), analysis=analysis
    )
    found, _ = study([sizes[1], larger])
    assert [p.base_world_size for p in found.points] == [2, 2]
    assert found.points[1].loss is None
    assert found.points[1].speedup.value == pytest.approx(2 * sizes[1].point.step_ms.value / 80)
    assert any("relative to 2 ranks" in line for line in found.quality.warnings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda a, b: [a, dataclasses.replace(b, plan=dataclasses.replace(b.plan, source="harness"))],
            "scaling run",
        ),
        (lambda a, _b: [a, a], "runs at two world sizes or more are expected"),
        (lambda a, b: [a, b, b], "belong into one folder"),
        (lambda a, b: [a, _batch(b, 24)], "neither equal"),
        (lambda a, b: [a, _model(b)], "model is Other"),
        (lambda a, b: [a, _staged(b)], "the stages of a pipeline"),
    ],
)
def test_what_is_no_study_is_refused(sizes, change, said):
    with pytest.raises(InputError, match=said):
        study(change(*sizes))


def test_an_unknown_batch_is_said(sizes):
    analysis, _ = study([_batch(size, 0) for size in sizes])
    assert analysis.run.mode == "weak"
    assert any("Probe(batch=...)" in line for line in analysis.quality.warnings)


def test_measured_numbers_multiply_with_their_errors():
    found = Measured(2.0, 1.8, 2.2, 5) * Measured(3.0, 2.9, 3.1, 9)
    assert (found.value, found.n) == (6.0, 5)
    assert found.half_width == pytest.approx(math.hypot(0.2 * 3, 0.1 * 2))
    assert (Measured(2.0) * Measured(3.0, 2.0, 4.0)).interval is None


def _batch(size, batch):
    trial = dataclasses.replace(size.plan.trials[0], batch=batch)
    return dataclasses.replace(size, plan=dataclasses.replace(size.plan, trials=(trial,)))


def _staged(size):
    spec = dataclasses.replace(size.plan.spec, parallel=Parallel(name="pp", replicate=1, pipeline=-1))
    return dataclasses.replace(size, plan=dataclasses.replace(size.plan, spec=spec))


def _model(size):
    run = dataclasses.replace(size.analysis.run, model="Other")
    return dataclasses.replace(size, analysis=dataclasses.replace(size.analysis, run=run))


def _drawn(size, factors):
    """The size with as many launches, and their mean as its step."""
    step = dataclasses.replace(size.point.step_ms, value=size.point.step_ms.value * float(factors.mean()))
    point = dataclasses.replace(
        size.point, step_ms=dataclasses.replace(step, low=step.value, high=step.value)
    )
    analysis = dataclasses.replace(size.analysis, points=(point,))
    return dataclasses.replace(launched(size, *factors.tolist()), analysis=analysis)
