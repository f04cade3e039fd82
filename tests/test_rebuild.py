"""What is read back beside the rank files."""

from __future__ import annotations

import pytest

from scaling.analysis.results import Memory
from scaling.rebuild import rebuild
from scaling.report.findings import memory_line
from scaling.store import RunFolder, write_json

MIB = 2**20


@pytest.fixture
def run(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3), folder.path)
    return folder


def noted(peak, communicators=None):
    return {"peak_bytes": peak, "communicators_bytes": communicators}


def test_memory_is_that_of_the_rank_that_held_most_at_each_world_size(run):
    launch = run.launch(0)
    write_json(launch.memory(0), {"world_sizes": {"1": noted(900 * MIB), "2": noted(500 * MIB, 7 * MIB)}})
    write_json(launch.memory(1), {"world_sizes": {"2": noted(600 * MIB, 6 * MIB)}})
    one, two = rebuild(run).analysis.points
    assert one.memory == Memory(peak_bytes=900 * MIB)
    assert two.memory == Memory(peak_bytes=600 * MIB, communicators_bytes=7 * MIB)
    said = " ".join(run.report_txt.read_text().split())
    assert "600 MiB a rank at most (resident); 7 MiB for the group's communicator" in said


@pytest.mark.parametrize(
    "text", ["", "[]", '{"peak_bytes": 5}', '{"world_sizes": {"1": {"peak_bytes": null}}}']
)
def test_where_nothing_was_noted_nothing_is_said(run, text):
    run.launch(0).memory(0).write_text(text)
    analysis = rebuild(run).analysis
    assert {p.memory for p in analysis.points} == {Memory()}
    assert "a rank at most" not in run.report_txt.read_text()


def test_memory_in_words():
    assert memory_line(Memory(peak_bytes=3 * MIB), "cuda") == "3 MiB a rank at most (allocated by torch)"
