"""`scaling study`, `compare` and `report` of own loops at several world sizes, and what `latest` is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.commands import refused
from support.own_loops import own_loop
from support.simulated_cluster import Truth

from scaling.cli.main import main
from scaling.records.paths import find_run, named

TRUTH = Truth(hosts=2, rounds=4)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A folder as `scaling launch` leaves it, but for launch.json."""
    folder = tmp_path_factory.mktemp("launched") / "runs/2026-01-02/101010-abc"
    for n in (1, 2):
        own_loop(replace(TRUTH, world_sizes=(n,)), folder / f"ranks-{n}")
    return folder


def test_runs_are_put_together_and_written_where_it_was_asked(launched, tmp_path, capsys):
    runs = [str(launched / f"ranks-{n}") for n in (2, 1)]
    assert main(["study", *runs, "--into", str(tmp_path / "study")]) == 0
    out = capsys.readouterr().out
    assert "At 2 ranks the run keeps" in out
    assert "slower compute" not in out  # with --verbose only
    found = json.loads((tmp_path / "study/study.json").read_text())
    assert [p["world_size"] for p in found["points"]] == [1, 2]
    assert found["study"]["base_world_size"] == 1
    assert found["points"][1]["loss"]["slower_compute"]["value"] > 0
    assert "</html>" in (tmp_path / "study/study.html").read_text()


def test_json_is_one_document_and_a_study_writes_nothing_by_itself(launched, capsys):
    before = set(launched.rglob("*"))
    assert main(["study", *(str(launched / f"ranks-{n}") for n in (1, 2)), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["points"][1]["efficiency"]["value"] < 1
    assert set(launched.rglob("*")) == before


def test_compare_of_two_world_sizes_is_their_study(launched, capsys):
    runs = [str(launched / f"ranks-{n}") for n in (1, 2)]
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    assert "this is their scaling study" in out
    assert "At 2 ranks the run keeps" in out
    assert main(["compare", *runs, "--json"]) == 0
    assert "`scaling study` makes a scaling study" in json.loads(capsys.readouterr().out)["reasons"][-1]


def test_runs_of_one_size_in_several_folders_are_its_launches(launched, tmp_path, capsys):
    for n in (1, 2):
        own_loop(replace(TRUTH, world_sizes=(n,), seed=5), tmp_path / f"again-{n}")
    runs = [str(folder) for n in (1, 2) for folder in (launched / f"ranks-{n}", tmp_path / f"again-{n}")]
    assert main(["study", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["world_size"] for p in found["points"]] == [1, 2]
    assert found["study"]["covers"] == "launches"
    assert [len(run["launch_ms"]) for run in found["study"]["runs"]] == [2, 2]
    each = [ms for run in found["study"]["runs"] for ms in run["launch_ms"]]
    assert found["points"][1]["step_ms"]["value"] == pytest.approx(sum(each[2:]) / 2, rel=0.02)
    assert found["run"]["launches"] == 4


def test_one_run_is_no_study(launched, capsys):
    refused(capsys, ["study", str(launched / "ranks-1")], "two world sizes or more are expected")


def test_latest_is_what_was_launched_last_and_a_folder_without_a_run_is_passed_over(
    launched, monkeypatch, capsys
):
    monkeypatch.chdir(launched.parents[2])
    (launched.parent / "235959-zzz").mkdir(exist_ok=True)
    assert main(["study", str(launched / "ranks-1"), str(launched / "ranks-2")]) == 0
    (launched / "launch.json").write_text("{}")
    capsys.readouterr()
    assert named("latest") == launched.relative_to(launched.parents[2])
    refused(capsys, ["analyze", "latest"], "holds the runs of `scaling launch`", "ranks-1")
    assert main(["study", "latest"]) == 0
    assert (launched / "study.json").is_file()
    assert main(["report", "latest"]) == 0
    assert "At 2 ranks the run keeps" in capsys.readouterr().out
    assert find_run(launched / "ranks-1").path == launched / "ranks-1"
