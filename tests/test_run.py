"""Going on with a run: which launch comes next, by what is there."""

from __future__ import annotations

import pytest

from scaling.launchers.cause import Outcome
from scaling.rebuild import read_plan
from scaling.run import measure
from scaling.store import RunFolder


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

    def follow(command, launch, measure, progress):
        started.append(launch.index)
        return Outcome(status="done")

    monkeypatch.setattr("scaling.run.follow", follow)
    return started


def test_a_run_that_is_whole_has_nothing_left(run, launched):
    assert measure(read_plan(run), run, print).state == "done"
    assert launched == []


def test_a_run_whose_status_is_gone_is_measured_again_beside_what_is_there(run, launched, capsys):
    run.status.unlink()
    before = run.launch(0).rank(0).read_bytes()
    status = measure(read_plan(run), run, print)
    assert (status.state, [one.index for one in status.launches]) == ("done", [1])
    assert launched == [1]
    assert run.launch(0).rank(0).read_bytes() == before
    assert capsys.readouterr().out == ""
