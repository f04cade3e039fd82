"""Atomic writes and versions."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from scaling.errors import InputError
from scaling.reading import open_to_write
from scaling.records.files import add_line, read_json, write_json, write_text

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


# Others may write to the folder


@pytest.mark.parametrize("write", [lambda path: add_line(path, {}), open_to_write])
@pytest.mark.parametrize("aim", ["of-the-user", "not-there", "pipe", None])
def test_what_stands_in_a_files_place_is_neither_followed_nor_waited_for(write, aim, path, tmp_path):
    (tmp_path / "of-the-user").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    if aim is None:
        os.mkfifo(path)
    else:
        path.symlink_to(aim)
    with pytest.raises(OSError, match=r"link|No such device"):
        write(path)
    assert (tmp_path / "of-the-user").read_text() == "precious"
    assert not (tmp_path / "not-there").exists()


def test_a_link_is_replaced_not_written_through(path, tmp_path, monkeypatch):
    (tmp_path / "of-the-user").write_text("precious")
    names = ["waits", "free"]
    monkeypatch.setattr("secrets.token_hex", lambda _: names.pop(0))
    (tmp_path / f".{path.name}.waits.part").symlink_to("of-the-user")
    path.symlink_to("of-the-user")
    with pytest.raises(FileExistsError):  # an enemy would have to guess 64 bits
        write_text(path, "new")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert not path.is_symlink()
    assert (tmp_path / "of-the-user").read_text() == "precious"


# Versions


def test_a_newer_file_asks_for_an_update(path):
    write_json(path, Note(SCHEMA + 1))
    said = refused(path)
    assert f"written in format {SCHEMA + 1}, this version reads format {SCHEMA}" in said
    assert "update" in said


def test_an_older_file_asks_to_be_rebuilt(path):
    write_json(path, {"schema": SCHEMA - 1})
    assert "analyze" in refused(path)


@pytest.mark.parametrize("found", [None, "old"])
def test_a_file_of_another_program_is_told_apart(path, found):
    write_json(path, {"schema": found})
    assert (
        "has no format number, so no version of this program wrote it; it should be a file that `scaling` wrote"
        in refused(path)
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff\xfe", json.dumps({"schema": SCHEMA, "colour": "red"}).encode()]
)
def test_a_damaged_file_is_refused(path, content):
    path.write_bytes(content)
    assert "should be a file that `scaling` wrote" in refused(path)


def test_a_missing_file_is_refused(path):
    assert "cannot be read" in refused(path)
