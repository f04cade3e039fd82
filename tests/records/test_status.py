"""What is left of a run, from what its launches did."""

from dataclasses import replace

import pytest

from scaling.records import files
from scaling.records.run import LaunchStatus, Status, in_words, left, status_of
from scaling.settings.plan import Plan

SIZES = (1, 2, 4)


@pytest.fixture
def plan(cluster) -> Plan:
    return cluster.plan_of(cluster.Truth(world_sizes=SIZES))


def launch(index=0, state="done", **more):
    finished = SIZES if state == "done" else ()
    return LaunchStatus(
        **{"index": index, "world_sizes": SIZES, "state": state, "finished": finished, **more}
    )


def repeated(plan, repeats):
    return replace(plan, spec=replace(plan.spec, repeats=repeats))


def trials(plan, launches):
    return {t.world_size: t.status for t in status_of(plan, launches).trials}


def test_everything_is_left_of_a_run_that_has_not_begun(plan):
    assert left(plan, []) == SIZES
    assert set(trials(plan, []).values()) == {"planned"}


def test_nothing_is_left_of_what_is_finished(plan):
    assert left(plan, [launch()]) == ()
    assert set(trials(plan, [launch()]).values()) == {"done"}


def test_repeats_are_left_too(plan):
    assert left(repeated(plan, 2), [launch()]) == SIZES
    assert trials(repeated(plan, 2), [launch()])[1] == "interrupted"
    assert left(repeated(plan, 2), [launch(), launch(1)]) == ()


def test_the_trial_that_fails_is_given_up_and_the_others_go_on(plan):
    failing = [launch(k, "failed", world_size=4, error="boom", rank=3) for k in range(3)]
    assert left(plan, failing[:2]) == SIZES
    assert left(plan, failing) == (1, 2)
    assert trials(plan, failing) == {1: "lost", 2: "lost", 4: "failed"}
    ended = [*failing, launch(3, world_sizes=(1, 2), finished=(1, 2))]
    assert left(plan, ended) == ()
    assert trials(plan, ended) == {1: "done", 2: "done", 4: "failed"}
    assert status_of(plan, ended).trials[2].error == "boom"
    assert status_of(plan, ended).trials[2].rank == 3


def test_a_failure_without_a_world_size_counts_against_every_trial(plan):
    assert left(plan, [launch(k, "timeout") for k in range(3)]) == ()


HUNG = {"rank": 1, "stage": "plain at world size 4"}


def test_what_hung_twice_in_the_same_way_is_not_tried_a_third_time(plan):
    same = [launch(k, "timeout", world_size=4, **HUNG) for k in range(2)]
    assert left(plan, same[:1]) == SIZES
    assert left(plan, same) == (1, 2)
    assert left(plan, same, since=2) == SIZES


@pytest.mark.parametrize(
    "second",
    [
        {"state": "timeout", "rank": 0, "stage": "plain at world size 4"},
        {"state": "timeout", "rank": 1, "stage": "warm-up of world size 4"},
        {"state": "timeout", "rank": 1},
        {"state": "failed", "rank": 1},
    ],
    ids=["another rank", "another stage", "a stage that is not known", "a failure"],
)
def test_what_failed_in_another_way_is_tried_a_third_time(plan, second):
    tried = [launch(0, "timeout", world_size=4, **HUNG), launch(1, **{"world_size": 4, **second})]
    assert left(plan, tried) == SIZES


def test_resuming_grants_another_try(plan):
    failing = [launch(k, "failed", world_size=4) for k in range(3)]
    assert left(plan, failing, since=3) == SIZES


@pytest.mark.parametrize("state", ["interrupted", "lost"])
def test_what_was_cut_off_is_left_and_no_fault_of_its_own(plan, state):
    cut = [launch(k, state) for k in range(9)]
    assert left(plan, cut) == SIZES
    assert set(trials(plan, cut).values()) == {"interrupted"}


def test_what_is_whole_counts_whatever_became_of_the_launch(plan):
    assert left(plan, [launch(0, "lost", finished=SIZES)]) == ()


def test_what_does_not_fit_is_not_tried_again(plan):
    full = [launch(too_large=(4,), finished=(1, 2))]
    assert left(repeated(plan, 2), full) == (1, 2)
    assert trials(repeated(plan, 2), full)[4] == "oom"


def test_a_run_ends_after_a_bounded_number_of_failures(plan):
    """Each failing launch counts against at least one trial."""
    launches: list[LaunchStatus] = []
    while sizes := left(plan, launches):
        launches.append(launch(len(launches), "failed", world_sizes=sizes, world_size=sizes[-1]))
        assert len(launches) <= 3 * len(SIZES)


def test_a_baseline_that_fails_counts_against_those_that_need_it(plan):
    failing = [launch(k, "failed", world_sizes=(4,), world_size=1) for k in range(3)]
    assert left(plan, failing) == (1, 2)


def test_the_run_is_done_when_all_trials_are(plan):
    given_up = [launch(k, "failed", world_size=4) for k in range(3)] + [
        launch(3, world_sizes=(1, 2), finished=(1, 2))
    ]
    states = [status_of(plan, done).state for done in ([], [launch(0, "failed"), launch(1)], given_up)]
    assert states == ["planned", "done", "failed"]


def test_a_failure_is_told_with_what_follows_from_it():
    failed = launch(1, "timeout", error="rank 3 hung")
    assert in_words(failed, (2, 4)) == (
        "launch 1 hung: rank 3 hung; launch 2 measures what is left, world size 2, 4"
    )
    assert in_words(replace(failed, finished=SIZES), ()) == (
        "launch 1 hung: rank 3 hung; its records were whole by then"
    )


def test_it_survives_being_written(plan):
    status = status_of(plan, [launch(0, "failed", error="boom"), launch(1)])
    assert files.decode(Status, files.encode(status)) == status
