"""Going on with a run: which launch comes next, by what is there."""

import dataclasses
import json

import pytest

from scaling.cli.measuring import preflight
from scaling.cli.pipeline import rebuild
from scaling.errors import InputError, ScalingError
from scaling.launchers.failure.cause import LaunchOutcome
from scaling.launchers.jobs import launcher_of
from scaling.launchers.runner import measure
from scaling.records.files import add_line, write_json
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan


@pytest.fixture
def run(cluster, simulate, tmp_path):
    """A run of one launch that is whole."""
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=1, ranks_per_host=2, rounds=3), folder.path)
    return folder


@pytest.fixture
def launched(monkeypatch):
    """The launches that are started; each ends well at once."""
    started = []

    def follow(command, launch, measure, progress, meanwhile):
        started.append(launch.index)
        return LaunchOutcome(status="done")

    monkeypatch.setattr("scaling.launchers.runner.follow", follow)
    return started


def test_a_run_that_is_whole_has_nothing_left(run, launched):
    assert measure(read_plan(run), run, print, preflight).state == "done"
    assert launched == []


def test_a_launch_that_ended_well_after_its_driver_was_killed_is_written_down_as_finished(run, launched):
    known = json.loads(run.status.read_text())
    (one,) = known["launches"]
    known["launches"] = [{**one, "state": "running", "finished": []}]
    run.status.write_text(json.dumps(known))
    assert measure(read_plan(run), run, print, preflight).state == "done"
    assert launched == []
    assert [t["status"] for t in json.loads(run.status.read_text())["trials"]] == ["done", "done"]
    assert rebuild(run).exit_code == 0


def test_a_run_whose_status_is_gone_is_measured_again_beside_what_is_there(run, launched, capsys):
    run.status.unlink()
    before = run.launch(0).rank(0).read_bytes()
    status = measure(read_plan(run), run, print, preflight)
    assert (status.state, [one.index for one in status.launches]) == ("done", [1])
    assert launched == [1]
    assert run.launch(0).rank(0).read_bytes() == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("said", "state"),
    [(ScalingError("squeue: Socket timed out"), "failed"), (KeyboardInterrupt(), "interrupted")],
    ids=["Slurm does not answer", "Ctrl-C"],
)
def test_what_ends_a_run_between_launches_leaves_what_was_measured(run, monkeypatch, said, state):
    """The second of two launches could not even be prepared."""
    plan = dataclasses.replace(read_plan(run), spec=dataclasses.replace(read_plan(run).spec, repeats=2))
    write_json(run.plan, plan)

    def command(*arguments):
        raise said

    monkeypatch.setattr(type(launcher_of(plan)), "command", command)
    status = measure(plan, run, print, preflight)
    assert [one.state for one in status.launches] == ["done", state]
    assert json.loads(run.status.read_text())["launches"][1]["error"] == status.launches[1].error
    assert rebuild(run).analysis.points


def test_no_launch_follows_a_plan_that_was_put_in_the_place_of_the_runs_own(run, launched):
    plan = read_plan(run)
    run.status.unlink()
    write_json(run.plan, dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, repeats=2)))
    with pytest.raises(InputError, match=r"plan\.json: is not the plan that this run began with"):
        measure(plan, run, print, preflight)
    assert launched == []


def test_ranks_that_differ_are_named_once_all_have_told_what_they_run_on_and_before_a_round(run, monkeypatch):
    said = []

    def follow(command, launch, measure, progress, meanwhile):
        for rank, torch in enumerate(("2.13.0", "2.12.0")):
            progress({"stage": "warm-up", "rounds": 0.0})
            found = {"schema": 1, "rank": rank, "host": 0, "torch": torch}
            if rank == 0:
                write_json(launch.env(0), found)
            else:
                add_line(launch.envs(0), found)
        progress({"stage": "warm-up of world size 2", "rounds": 0.0})
        progress({"stage": "round 1", "rounds": 0.0})
        return LaunchOutcome(status="done")

    monkeypatch.setattr("scaling.launchers.runner.follow", follow)
    run.status.unlink()
    measure(read_plan(run), run, lambda record: said.append(record.get("said") or record["stage"]), preflight)
    assert said == [
        *("warm-up",) * 2,
        "warm-up of world size 2",
        "torch differs: 2.13.0 on rank 0, 2.12.0 on rank 1; install the same torch on every host",
        "round 1",
    ]
