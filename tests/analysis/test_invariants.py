"""No figure that cannot be is printed: it is absent with a warning, or the reason stands beside it."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import rank_files
from support.possible import assert_possible

from scaling.analysis.invariants import within
from scaling.analysis.results import Measured
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder

SIZES = (1, 2)


@pytest.fixture(scope="module")
def whole(measure, cluster):
    return measure(cluster.Truth(world_sizes=SIZES, rounds=4, steps=4)).analysis


def with_point(analysis, **changes):
    first, last = analysis.points
    return dataclasses.replace(analysis, points=(first, dataclasses.replace(last, **changes)))


def test_what_can_be_stays_as_it_is(whole):
    assert within(whole) == whole
    assert_possible(whole)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("step_ms", -378.0, "it cannot be 0 or less"),
        ("samples_per_s", -84.6, "it cannot be 0 or less"),
        ("efficiency", -0.025, "it cannot be 0 or less"),
        ("samples_per_s", 0.0, "it cannot be 0 or less"),
        ("closure", float("nan"), "that is no number"),
        ("mfu", float("inf"), "that is no number"),
    ],
)
def test_what_cannot_be_is_absent_and_said(whole, name, value, why):
    found = within(with_point(whole, **{name: Measured(value, n=4)}))
    assert getattr(found.points[1], name) is None
    (line,) = [line for line in found.quality.warnings if line.startswith(name)]
    assert line == f"{name} at 2 ranks came out as {value:.4g}, and {why}; it is left out"


def test_one_rank_is_said_as_one(whole):
    alone, *others = whole.points
    parts = dataclasses.replace(alone.parts_ms, backward=Measured(10.0, -900.0, 920.0, 4))
    alone = dataclasses.replace(alone, samples_per_s=Measured(-8.0, n=4), parts_ms=parts)
    said = within(dataclasses.replace(whole, points=(alone, *others))).quality.warnings
    assert any(line.startswith("samples_per_s at 1 rank came out as -8") for line in said)
    assert any(line.startswith("backward at 1 rank: known to no better") for line in said)


def test_a_number_outside_of_its_own_interval_is_absent(whole):
    found = within(with_point(whole, step_ms=Measured(50.0, 60.0, 70.0, 4)))
    assert found.points[1].step_ms is None


def test_negative_parts_and_shares_beyond_the_whole_are_absent(whole):
    point = whole.points[1]
    parts = dataclasses.replace(point.parts_ms, exposed_skew=Measured(-3.0, -4.0, -2.0, 4))
    comm = dataclasses.replace(point.comm, hidden_share=Measured(1.4, n=4))
    found = within(with_point(whole, parts_ms=parts, comm=comm)).points[1]
    assert (found.parts_ms.exposed_skew, found.comm.hidden_share) == (None, None)
    assert found.parts_ms.forward == point.parts_ms.forward


def test_noise_around_nothing_is_no_impossibility(whole):
    parts = dataclasses.replace(whole.points[1].parts_ms, host=Measured(-0.01, -0.05, 0.03, 4))
    found = within(with_point(whole, parts_ms=parts))
    assert found.points[1].parts_ms.host is not None


def test_a_loss_that_does_not_add_up_is_not_split(whole):
    loss = dataclasses.replace(whole.points[1].loss, overlap=Measured(0.9, n=4))
    found = within(with_point(whole, loss=loss))
    assert found.points[1].loss is None
    assert any("do not add up to 1 - efficiency" in line for line in found.quality.warnings)


def test_more_than_ideal_stays_with_its_reason(whole):
    point = whole.points[1]
    change = {"efficiency": Measured(1.3, 1.25, 1.35, 4), "loss": None}
    found = within(with_point(whole, **change))
    assert found.points[1].efficiency == change["efficiency"]
    assert any("superlinear" in line for line in found.quality.warnings)
    same = within(
        with_point(whole, efficiency=Measured(1.01, 0.97, 1.05, 4), loss=None, overhead=point.overhead)
    )
    assert not any("superlinear" in line for line in same.quality.warnings)


def test_what_tells_nothing_stays_with_its_reason_and_the_loss_is_not_split(whole):
    wild = Measured(0.33, 0.01, 9.53, 3)
    point = whole.points[1]
    loss = dataclasses.replace(
        point.loss, unexplained=point.loss.unexplained + (point.efficiency.value - wild.value)
    )
    found = within(with_point(whole, efficiency=wild, samples_per_s=Measured(465, 4.6, 47000, 3), loss=loss))
    assert found.points[1].efficiency == wild
    assert found.points[1].loss is None
    (line,) = [line for line in found.quality.warnings if "unknown" in line]
    assert line.startswith(
        "samples_per_s, efficiency at 2 ranks: unknown, since 3 rounds or launches were too few"
    )
    assert any("the loss is not split" in line for line in found.quality.warnings)


def test_a_link_that_takes_more_than_all_waits_is_no_cause(whole):
    """Once a study said that the link takes 40 % of a step, beside a transfer of 24 % of it."""
    loss, parts = whole.points[1].loss, whole.points[1].parts_ms
    step = whole.points[1].arms_ms.probe.value
    more = (parts.exposed_transfer.value + parts.exposed_skew.value) / step + 0.1 - loss.link_bandwidth.value
    loss = dataclasses.replace(
        loss, link_bandwidth=loss.link_bandwidth + more, unexplained=loss.unexplained - more
    )
    found = within(with_point(whole, loss=loss))
    assert found.points[1].loss is None
    assert any("by its replay, and all waits together" in line for line in found.quality.warnings)
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.evidence) == ("undecided", ("the loss is not split",))


def test_a_cause_known_to_no_better_than_the_step_is_not_split_off(whole):
    loss = dataclasses.replace(
        whole.points[1].loss, overlap=dataclasses.replace(whole.points[1].loss.overlap, low=-4.8, high=4.8)
    )
    found = within(with_point(whole, loss=loss))
    assert found.points[1].loss is None
    assert any(
        "the causes of the loss at 2 ranks are known to no better" in w for w in found.quality.warnings
    )


def test_a_part_known_to_no_better_than_the_step_is_left_out(whole):
    point = whole.points[1]
    parts = dataclasses.replace(point.parts_ms, backward=Measured(20.0, -280.0, 320.0, 3))
    found = within(with_point(whole, parts_ms=parts))
    assert found.points[1].parts_ms.backward is None
    assert found.points[1].parts_ms.forward == point.parts_ms.forward
    assert any(line.startswith("backward at 2 ranks: known to no better") for line in found.quality.warnings)


@pytest.fixture(scope="module")
def recorded(simulate, cluster, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("invariants") / "run")
    simulate(cluster.Truth(world_sizes=SIZES, rounds=3, steps=3), folder.path)
    return folder, {rank: folder.launch(0).rank(rank).read_bytes() for rank in (0, 1)}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=st.integers(0, 10_000), stamp=st.integers(0, 8), digit=st.integers(0, 14), now=st.integers(0, 9))
def test_a_changed_digit_never_gives_what_cannot_be(recorded, line, stamp, digit, now):
    """Measured so, that is: before the checksums are made."""
    folder, files = recorded

    def change(lines):
        steps = [one for one in lines if one["t"] == "step"]
        stamps = steps[line % len(steps)]["s"]
        text = list(str(stamps[stamp % len(stamps)]))
        text[digit % len(text)] = str(now)
        stamps[stamp % len(stamps)] = int("".join(text))

    try:
        rank_files.change(folder.launch(0).rank(1), change)
        assert_possible(rebuild(folder).analysis)
    finally:
        for rank, content in files.items():
            folder.launch(0).rank(rank).write_bytes(content)


@pytest.mark.parametrize("name", ["curve_share", "nominal_share", "efficiency_loaded"])
def test_a_share_above_one_stays_with_its_reason(whole, name):
    above = Measured(1.05, 1.02, 1.08, 4)
    comm = dataclasses.replace(
        whole.points[-1].comm, **({name: above} if name != "efficiency_loaded" else {})
    )
    changes = {"comm": comm} if name != "efficiency_loaded" else {name: above}
    found = within(with_point(whole, **changes))
    kept = found.points[-1]
    assert getattr(kept if name == "efficiency_loaded" else kept.comm, name) == above
    (said,) = [
        line for line in found.quality.warnings if line.startswith(f"{name} at 2 ranks lies above 100 %")
    ]
    assert "(105.0%): " in said
