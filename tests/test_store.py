"""The run folder: names, atomic writes, versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from scaling.errors import InputError
from scaling.store import RunFolder, read_json, write_json, write_text

SCHEMA = 3


@dataclass(frozen=True)
class Note:
    schema: int
    text: str = ""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "note.json"


def refused(path):
    with pytest.raises(InputError) as caught:
        read_json(path, Note, SCHEMA)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


# Files land whole


def test_what_was_written_is_read(path):
    write_json(path, Note(SCHEMA, "Grüße\n"))
    assert read_json(path, Note, SCHEMA) == Note(SCHEMA, "Grüße\n")


def test_a_file_replaces_the_one_before_and_leaves_nothing_beside_it(path):
    for text in ("one", "two"):
        write_json(path, Note(SCHEMA, text))
    assert read_json(path, Note, SCHEMA).text == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_no_part(path, monkeypatch):
    write_text(path, "old")

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_not_written(path, value):
    with pytest.raises(ValueError):
        write_json(path, {"value": value})
    assert not path.exists()


# Versions


def test_a_newer_file_asks_for_an_update(path):
    write_json(path, Note(SCHEMA + 1))
    said = refused(path)
    assert f"written in format {SCHEMA + 1}, this version reads format {SCHEMA}" in said
    assert "update" in said


@pytest.mark.parametrize("found", [SCHEMA - 1, None, "old"])
def test_an_older_file_asks_to_be_rebuilt(path, found):
    write_json(path, {"schema": found})
    assert "analyze" in refused(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        json.dumps({"schema": SCHEMA, "colour": "red"}).encode(),
    ],
)
def test_a_damaged_file_is_refused(path, content):
    path.write_bytes(content)
    assert "should be a file that `scaling` wrote" in refused(path)


def test_a_missing_file_is_refused(path):
    assert "cannot be read" in refused(path)


# Names


def test_a_folder_without_a_plan_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a run"):
        RunFolder(tmp_path).require()
    with pytest.raises(InputError, match="no such folder"):
        RunFolder(tmp_path / "nowhere").require()
    write_text(RunFolder(tmp_path).plan, "{}")
    assert RunFolder(tmp_path).require().path == tmp_path


def test_launches_are_in_the_order_of_their_numbers(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.launches() == []
    for index in (10, 2, 0):
        folder.launch(index).path.mkdir(parents=True)
    (tmp_path / "launches" / "notes").mkdir()
    assert [launch.index for launch in folder.launches()] == [0, 2, 10]


def test_names_are_those_of_the_format(tmp_path):
    folder = RunFolder(tmp_path)
    top = (
        "config",
        "plan",
        "command",
        "status",
        "analysis",
        "timeline",
        "report_html",
        "report_md",
        "report_txt",
    )
    assert [getattr(folder, name).name for name in top] == [
        "config.yaml",
        "plan.json",
        "command.txt",
        "status.json",
        "analysis.json",
        "timeline.json",
        "report.html",
        "report.md",
        "report.txt",
    ]
    assert folder.table("steps") == tmp_path / "steps.parquet"
    launch = folder.launch(1)
    assert launch.rank(3) == tmp_path / "launches" / "1" / "rank-3.jsonl"
    assert [p.name for p in (launch.env(3), launch.error(3), launch.log(3))] == [
        "env-3.json",
        "error-3.json",
        "log-3.txt",
    ]
