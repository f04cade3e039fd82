"""What comes in a run's files names no folder, command or place to upload to, and nothing of the user is replaced."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from scaling.cli.main import main
from scaling.records import baselines, files
from scaling.records.encoding import digest_of
from scaling.records.files import remove
from scaling.records.paths import RunFolder
from scaling.settings.bounds import Named
from scaling.settings.environment import LEFT_OUT, is_secret_value, without_secrets

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


def test_arguments_are_left_out_by_their_names_and_looks():
    secret = "correct-horse"
    for words in (
        ["--api-key", secret],
        [f"--apiKey={secret}"],
        [f"+model.args.db_password={secret}"],
        ["--hf-token", secret],
        ["-u", f"https://me:{secret}@host/x"],
        ["sk-0123456789abcdef" + secret],
        ["--passwd", secret, "--steps", "5"],
    ):
        found = without_secrets(["train.py", *words])
        assert not any(secret in word for word in found)
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
