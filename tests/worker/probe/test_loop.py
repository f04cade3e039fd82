"""A probe in real trainings on two ranks: what it changes (nothing), what it leaves, what it says."""

import json
from pathlib import Path

import pytest
from support.tables import unchecked

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.predict.sources import read_sources
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

pytestmark = pytest.mark.slow  # many trainings of two ranks

SCRIPT = Path(__file__).with_name("two_ranks.py")
NO_HOOK = [0, 0, 0, 0, 0, False]


@pytest.mark.parametrize("probe", ["on", "off", "again", "baseline"])
def test_losses_and_weights_are_bitwise_what_they_are_without(ranks, probe):
    for rank in ranks:
        assert rank[probe]["losses"] == rank["absent"]["losses"]
        assert rank[probe]["weights"] == rank["absent"]["weights"]


def test_it_leaves_no_hook_behind_and_off_registers_none(ranks, kept):
    for rank in ranks:
        assert rank["absent"]["during"] == NO_HOOK
        assert rank["off"]["during"] == NO_HOOK
        assert rank["on"]["during"] != NO_HOOK
        assert rank["on"]["after"] == rank["kinds"]["after"] == NO_HOOK
    assert not (kept / "off").exists()


def test_a_second_training_in_the_same_folder_is_another_launch(found):
    analysis = found("on")
    assert analysis.run.launches == 2
    assert [trial.launches for trial in analysis.trials] == [(0, 1)]
    assert not any("cut off" in line for line in analysis.quality.warnings)
    assert analysis.points[0].step_ms.n >= 5  # rounds that follow one another are pooled


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no_module", "what the loop calls is expected: a module, a wrapper or an engine of one"),
        ("nested", "step() inside step()"),
        ("left_out", "step() was never entered"),
        ("two", "another Probe is open in this process"),
        ("unwritable", "cannot be written to"),
        ("shared", "the step has collectives of its own"),
    ],
)
def test_misuse_is_told_in_one_line_and_the_training_goes_on(ranks, case, said):
    (line,) = ranks[0]["misuse"]["lines"][case]
    assert said in line
    # rank 0 speaks for all
    assert ranks[1]["misuse"]["lines"][case] == ([line] if case == "no_module" else [])
    assert case == "no_module" or case in ranks[1]["misuse"]["trained"]


def test_the_last_line_says_where_the_run_is(ranks, kept):
    ends = [line.split("`")[1].split()[-1] for line in ranks[0]["misuse"]["lines"]["last"]]
    assert str(kept / "nested") in ends
    assert str(kept / "unwritable") not in ends
    assert "last" not in ranks[1]["misuse"]["lines"]  # rank 0 speaks for all


def test_a_rank_that_stopped_recording_holds_up_no_baseline(ranks, kept):
    (said,) = ranks[0]["misuse"]["lines"]["planted"]
    assert "baseline() was not measured: rank 1 stopped (OSError: [Errno 40] it is a link;" in said
    (stopped,) = ranks[1]["misuse"]["lines"]["planted"]
    assert "stopped: OSError: [Errno 40] it is a link;" in stopped
    assert all("planted" in rank["misuse"]["trained"] for rank in ranks)
    assert not (kept / "of-the-user").exists()


def test_what_needs_no_baseline_is_there_and_what_needs_one_is_null(found):
    (point,) = found("on").points
    assert point.efficiency is None
    assert point.loss.neighbours is point.loss.overlap is point.loss.unexplained is None
    assert point.loss.link_bandwidth is not None
    assert point.comm.free_speedup.value >= 1
    for part in ("input", "forward", "backward", "exposed_transfer", "exposed_skew", "optimizer", "host"):
        assert getattr(point.parts_ms, part) is not None
    assert point.overhead.probe_over_plain is not None
    assert point.overhead.aa_floor is not None


@pytest.mark.measures  # beside others the replay of its buckets takes longer than all waits, and no loss is split
def test_with_a_baseline_all_of_it_is_there(found):
    (point,) = found("baseline").points
    assert point.efficiency.low < point.efficiency.value < point.efficiency.high
    arms = ("bare_one", "bare_all", "ddp_solo", "plain", "probe")
    assert all(getattr(point.arms_ms, arm) is not None for arm in arms)
    causes = (
        "neighbours",
        "strategy_overhead",
        "straggler",
        "link_bandwidth",
        "overlap",
        "input",
        "unexplained",
    )
    assert all(getattr(point.loss, cause) is not None for cause in causes)
    assert point.closure is not None
    assert point.comm.curve_share is not None
    assert found("baseline").fabric.levels


def test_a_prediction_of_it_knows_no_better_than_its_baseline(found, kept):
    """Three rounds of one, whatever the loop itself has."""
    run = RunFolder(kept / "baseline")
    found("baseline")
    plan = read_plan(run)
    (source,) = read_sources(RunRecords(unchecked(run, plan), plan))
    assert (source.units, source.groups) == (3, 1)


def test_accumulation_reduces_once_and_counts_all_samples(found, kept):
    for name, samples in (("on", 16), ("micro", 16), ("optimizers", 8)):
        (point,) = found(name).points
        payload = json.loads((kept / name / "launches/0/env-0.json").read_text())["parameter_bytes"]
        assert point.comm.bytes_per_step == payload
        assert point.samples_per_s.value == pytest.approx(2 * samples * 1e3 / point.step_ms.value)


def test_gradients_reduced_in_every_micro_step_are_counted(found, kept):
    for name, times in (("unsynced", 2), ("micro", 1), ("compiled", 1), ("baseline", 1)):
        (point,) = found(name).points
        payload = json.loads((kept / name / "launches/0/env-0.json").read_text())["parameter_bytes"]
        assert (point.comm.gradient_bytes, point.comm.reductions) == (payload, times)
        assert point.comm.bytes_per_step == times * payload
    tried = [t.code for v in found("unsynced").verdicts if v.cause == "link_bandwidth" for t in v.try_]
    assert all("no_sync" in code and "batches" not in code for code in tried)
    assert any("optimizer stepped in" in line for line in found("unsynced_micro").quality.warnings)


def test_an_evaluation_between_steps_is_no_input(found):
    (pause,) = found("optimizers").points[0].pauses
    assert (pause.kind, pause.count, pause.where) == ("evaluation", 1, "between steps")


def test_autocast_and_a_compiled_model(found):
    assert found("autocast").run.precision == "bf16"
    (point,) = found("compiled").points
    assert point.parts_ms.forward.value > 0
    assert point.comm.bytes_per_step > 0


def test_an_exception_in_the_loop_is_told_and_what_was_measured_stays(found):
    analysis = found("broken")
    (trial,) = analysis.trials
    assert (trial.status, trial.error) == ("failed", "BrokenError: in the loop")
    assert analysis.points[0].step_ms is not None


def test_after_a_step_that_one_rank_alone_failed_in_forward_steps_still_belong_together(found):
    analysis = found("failed")
    assert analysis.trials[0].status == "done"
    assert not any("what cannot be" in line for line in analysis.quality.warnings)


def test_clocks_of_two_kernels_are_compared_at_once_and_then_now_and_then(ranks):
    for rank in ranks:
        assert [slot for slot, _, _ in rank["clocks"]] == [1, 2]  # then two seconds later
        for _, kind, fields in rank["clocks"]:
            assert kind == "clock"
            assert abs(fields["offset_ns"]) <= fields["bound_ns"]  # it is one clock here
    assert ranks[1]["clocks"][0][2]["bound_ns"] > 0
