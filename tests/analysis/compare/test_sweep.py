"""Several runs as one table: what tells them apart, which is best, which ranks are slower than one."""

from dataclasses import replace

import pytest
from support.reports import sweep_page
from support.results import bare, run_info

from scaling.analysis.compare.differences import telling
from scaling.analysis.compare.sweep import Member, alike, sweep
from scaling.analysis.results import (
    ArmTimes,
    Measured,
    Point,
    Quality,
    TrainingCase,
    Verdict,
)
from scaling.settings.plan import make_plan


def about(value, relative=0.02):
    return Measured(value, value * (1 - relative), value * (1 + relative), 8)


@pytest.fixture
def member(cluster):
    """member(rates, **spec): a run with samples a second by world size."""
    spec = cluster.spec_of(cluster.Truth())

    def made(
        rates=None, *, cases=(), alone_ms=40.0, machine=None, warnings=(), verdicts=(), id_="run", **changes
    ):
        points = tuple(
            Point(
                world_size=n,
                hosts=n,
                status="done",
                warmup_steps=5,
                samples_per_s=about(rate, 0.005),
                efficiency=about(rate / n / 100, 0.005),
                arms_ms=ArmTimes(bare_one=about(alone_ms)),
            )
            for n, rate in (rates or {}).items()
        )
        quality = Quality(contended_blocks=0, dropped_samples=0, clock_bound_us=None, warnings=warnings)
        analysis = bare(run_info(id=id_), *points, verdicts=verdicts, quality=quality, training=cases)
        plan = make_plan(replace(spec, **changes), run_id=id_, created="", version="")
        return Member(analysis=analysis, plan=plan, machine=machine)

    return made


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([{"a": "1"}, {"a": "2"}], ("a",)),
        ([{"a": "1", "b": "x"}, {"a": "2", "b": "x"}], ("a",)),
        # What follows from a setting is left out, and batch_per_rank is known better than what follows from it.
        (
            [{"global_batch": "8", "batch_per_rank": "4"}, {"global_batch": "32", "batch_per_rank": "16"}],
            ("batch_per_rank",),
        ),
        (
            [{"x": "1", "topology": "a"}, {"x": "2", "topology": "b"}, {"x": "3", "topology": "b"}],
            ("topology", "x"),
        ),
        ([{"a": "1"}, {}], ("a",)),
        ([{"a": "1"}, {"a": "1"}], ()),
    ],
)
def test_the_fewest_settings_tell_runs_apart(settings, keys):
    assert telling(settings) == keys


def test_a_row_has_the_settings_that_differ_and_the_cause_that_is_named(member):
    verdicts = (
        Verdict(world_size=2, cause="undecided", share=about(0.9), confidence="low", evidence=()),
        Verdict(world_size=2, cause="link_bandwidth", share=about(0.4), confidence="high", evidence=()),
    )
    found = sweep(
        [member({1: 100, 2: 120}, batch_per_rank=4, verdicts=verdicts), member({1: 100}, batch_per_rank=8)]
    )
    assert found.names == ("batch_per_rank=4", "batch_per_rank=8")
    assert found.keys == ("batch_per_rank",)
    assert [(row.settings["batch_per_rank"], row.world_size, row.cause) for row in found.rows] == [
        ("4", 1, None),
        ("4", 2, "link_bandwidth"),
        ("8", 1, None),
    ]
    assert found.rows[1].speedup.value == pytest.approx(1.2)
    assert found.rows[0].speedup is None


def test_equal_runs_are_named_by_their_ids(member):
    assert sweep([member({1: 100}, id_="x"), member({1: 100}, id_="y")]).names == ("x", "y")


def test_the_best_row_and_those_that_it_is_not_told_from(member):
    (best,) = sweep([member({1: 100, 2: 150}), member({1: 100, 2: 151}, accumulation_steps=2)]).best
    assert (best.row, best.rivals) == (3, (1,))


def test_drift_of_the_machine_between_two_runs_counts_against_a_difference(member):
    runs = [member({2: 150}, machine="m", id_="a"), member({2: 160}, machine="m", alone_ms=36.0, id_="b")]
    assert sweep(runs).best[0].rivals == (0,)
    assert sweep([replace(run, machine=None) for run in runs]).best[0].rivals == ()


def test_samples_of_two_models_are_not_set_against_each_other(member):
    one = member({1: 100, 2: 150})
    other = member({1: 900, 2: 990}, model=replace(one.plan.spec.model, args={"width": 1}))
    assert [best.row for best in sweep([one, other]).best] == [1, 3]


def test_only_equal_work_is_in_one_group(member):
    runs = [
        member({1: 100}, batch_per_rank=4),
        member({1: 100}, batch_per_rank=8),
        member({1: 100}, batch_per_rank=4, compile=True),
        member({4: 100}, batch_per_rank=8),
    ]
    assert alike(runs) == [[0, 2], [1], [3]]


def test_cases_of_one_run_are_rows_under_what_varies(member):
    cases = tuple(
        TrainingCase(
            world_size=n,
            batch=batch,
            precision="fp32",
            status="done",
            samples_per_s=about(rate),
            efficiency=about(rate / (100 * n)),
            accumulation_steps=1,
            checkpointing=False,
        )
        for n, batch, rate in ((1, 4, 100), (2, 4, 60), (1, 8, 100), (2, 8, 180))
    )
    found = sweep([member(cases=cases)])
    assert found.keys == ("batch",)
    assert [row.name for row in found.rows] == ["batch=4", "batch=4", "batch=8", "batch=8"]
    assert found.rows[1].speedup.value == pytest.approx(0.6)


def test_a_contended_run_is_named(member):
    found = sweep([member({1: 100}, compile=True), member({1: 100}, warnings=("contended: others ran",))])
    assert found.contended == ("compile=false: others ran",)


def test_simulated_samples_are_no_rivals_of_measured_ones_and_are_labelled(member):
    runs = [member({1: 100, 2: 190}, id_=id_) for id_ in ("a", "b", "c")]
    unreal = replace(runs[2].analysis, run=replace(runs[2].analysis.run, simulated=True))
    runs = [*runs[:2], replace(member({1: 1000, 2: 1900}, id_="c"), analysis=unreal)]
    table = sweep(runs)
    assert [table.rows[best.row].run for best in table.best] == [0, 2]
    assert "SIMULATED accelerators" in sweep_page(table, (), [run.analysis for run in runs])
