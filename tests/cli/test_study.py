"""`scaling study`, `compare` and `report` of own loops at several world sizes, and what `latest` is.

`scaling doctor` where there is nothing to examine.

What comes in a run's files names no folder, command or place to upload to, and nothing of the user is replaced.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest
from support.commands import refused
from support.own_loops import own_loop
from support.simulated_cluster import Truth

from scaling.cli.main import main
from scaling.records import baselines, files
from scaling.records.encoding import digest_of
from scaling.records.files import remove, write_json
from scaling.records.paths import RunFolder, find_run, named
from scaling.settings.bounds import Named
from scaling.settings.environment import LEFT_OUT, is_secret_value, without_secrets

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
    assert main(["study", *runs, "--into", str(tmp_path / "study")]) == 0
    (tmp_path / "study/study.json").write_text('{"of": "another program"}')
    refused(capsys, ["study", *runs, "--into", str(tmp_path / "study")], "study.html is there and would be")
    assert "another program" in (tmp_path / "study/study.json").read_text()


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


@pytest.fixture(autouse=True)
def sigterm():
    """The verb takes SIGTERM for Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_disk_that_fills_up_before_the_first_launch_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    def full(path, value):
        if path.name == "status.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_json(path, value)

    monkeypatch.setattr("scaling.launchers.runner.write_json", full)
    monkeypatch.setattr("scaling.cli.verbs.doctor.try_model", lambda *_, **__: None)
    asked = ["topology=local", "topology.device=cpu", "topology.ranks_per_host=1", "model=mlp"]
    assert main(["doctor", *asked, f"run_dir={tmp_path / 'run'}"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("scaling: ")
    assert "nothing was checked: [Errno 28] No space left on device" in last


NAMES = ["", ".", "..", "../x", "a/b", "/tmp", "-rf", "a b", "a\nb", "a\0", "x" * 129, "é", "$(id)", "*"]


@dataclass(frozen=True)
class Thing:
    id: Annotated[str, Named()]


@pytest.mark.parametrize("name", NAMES)
def test_an_id_from_a_file_is_a_name(name):
    with pytest.raises(ValueError, match="letters, digits, dots and dashes"):
        files.decode(Thing, {"id": name})
    assert files.decode(Thing, {"id": "20261126-155252-cbe860d8"}).id


def test_only_a_baseline_that_was_kept_is_ever_replaced(tmp_path):
    (tmp_path / "main/20261126-1").mkdir(parents=True)
    (tmp_path / "main/20261126-1/thesis.txt").write_text("mine")
    plan = type("P", (), {"id": "20261126-1"})
    with pytest.raises(Exception, match="is no kept baseline"):
        baselines.keep("main", RunFolder(tmp_path / "run"), plan, tmp_path)
    assert (tmp_path / "main/20261126-1/thesis.txt").read_text() == "mine"


def test_a_folder_is_removed_where_it_is_and_not_where_a_link_leads(tmp_path):
    (tmp_path / "theirs/x").mkdir(parents=True)
    (tmp_path / "kept").symlink_to("theirs")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        remove(tmp_path / "kept", "x")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/x").symlink_to(tmp_path / "theirs/x")
    remove(tmp_path / "own", "x")
    remove(tmp_path / "absent", "x")
    assert (tmp_path / "theirs/x").is_dir()


def test_an_imported_topology_replaces_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pair.txt").write_text(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\nGPU1\tNV12\t X \t0-31\n\nLegend:\n"
    )
    assert main(["import", "topo", "pair.txt", "--into", "mine"]) == 0
    assert main(["import", "topo", "pair.txt", "--into", "mine"]) == 0  # the same again
    file = Path("mine/topology/pair.yaml")
    file.write_text("precious: 1\n")
    assert main(["import", "topo", "pair.txt", "--into", "mine"]) == 2
    assert "is there, and is not replaced" in capsys.readouterr().err
    assert file.read_text() == "precious: 1\n"
    file.unlink()
    file.symlink_to("on-a-disk-that-is-not-there")
    assert main(["import", "topo", "pair.txt", "--into", "mine"]) == 2
    assert file.is_symlink()


def test_arguments_are_left_out_by_their_names_and_looks():
    secret, number = "correct-horse", "83726154"
    for words in (
        ["--api-key", secret],
        [f"--apiKey={secret}"],
        [f"+model.args.db_password={secret}"],
        ["--hf-token", secret],
        ["-u", f"https://me:{secret}@host/x"],
        ["sk-0123456789abcdef" + secret],
        ["--passwd", secret, "--steps", "5"],
        ["--header", f"Authorization: Bearer {secret}"],
        ["--cfg", f'{{"lr": 0.1, "api_key": "{secret}"}}'],
        ["--cfg", f"{{hub_token: {secret}}}"],
        ["--cfg", f"{{'password': {number}}}"],
        ["--password", number],
        [f"--db-pin={number}"],
        ["LOGGER.API_KEY", secret],
        ["--header", f"Authorization: token {secret}"],
        ["--data", f"https://store.example/set?se=2030&sig={secret}"],
        ["--repo", f"https://ghp_{number * 3}@git.example/me/repo"],
    ):
        found = without_secrets(["train.py", *words])
        assert not any(secret in word or number in word for word in found)
        assert LEFT_OUT in " ".join(found)
    plain = [
        "train.py",
        "--lr",
        "0.1",
        "--num-tokens",
        "128",
        "data=/x/y",
        "--author",
        "me",
        "--keyboard=1",
        "a:b@c",
        '{"lr": 0.1, "num_tokens": 128}',
        "Bearer of bad news",
    ]
    assert list(without_secrets(plain)) == plain
    assert not is_secret_value("http://proxy:3128/")


@pytest.mark.parametrize("word", ["\udcff", "an\udcff/run"])
def test_a_name_that_is_not_utf8_is_refused_in_one_line(word, capsys):
    assert main(["analyze", word]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("verb", ["analyze", "status", "trace", "report"])
def test_a_name_that_is_too_long_is_refused_in_one_line(verb, capsys):
    assert main([verb, "x" * 300]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_removed_working_directory_is_said_in_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["status", "latest"]) == 2
    assert "the working directory" in capsys.readouterr().err
    os.chdir(tmp_path)


def test_a_digest_does_not_depend_on_how_a_file_has_the_plan():
    assert digest_of({"a": 1, "b": [1.5]}) == digest_of(json.loads('{"b": [1.5],\n "a": 1}'))
    assert digest_of({"a": 1}) != digest_of({"a": 2})
