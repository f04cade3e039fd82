"""A folder of configuration of one's own adds names; it takes none that the program has."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.commands import refused

from scaling.cli.main import main
from scaling.config import messages
from scaling.config.compose import named, require_readable
from scaling.errors import InputError
from scaling.resources import folder


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_it_is_found_on_a_command_line(words):
    assert named(["model=mlp", *words]) == Path("mine")


def test_a_command_line_without_one():
    assert named(["model=mlp", "--config-dir"]) is None


def test_a_copy_of_ours_that_was_changed_is_refused_and_the_file_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder("conf") / "topology", "mine/topology")
    require_readable(Path("mine"))  # as it is, it says the same as ours
    changed = Path("mine/topology/nvlink_node.yaml")
    changed.write_text(changed.read_text().replace("partition: nvlink", "partition: fast"))
    refused(
        capsys,
        ["plan", "--config-dir", "mine", "topology=nvlink_node"],
        "scaling: mine/topology/nvlink_node.yaml: topology=nvlink_node is one of those",
    )


def spec_of(capsys, *options):
    """What a plan of one rank on this machine would run."""
    assert main(["plan", *options, "topology=local", "world_sizes=[1]", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["spec"]


def test_a_folder_with_another_programs_config_yaml_adds_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text("database: mysql\n")
    assert spec_of(capsys, "--config-dir", "conf") == spec_of(capsys)


def test_our_own_folder_as_config_dir_changes_nothing(capsys):
    assert spec_of(capsys, "--config-dir", str(folder("conf"))) == spec_of(capsys)


LAUGHS = "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9) if k else 'x'}]\n" for k in range(9))
"""Aliases of aliases: 400 bytes that stand for 9^8 values."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS.encode(), "more than 20000 values, with its aliases written out"),
        (b"a: &a [*a]", "more than 20000 values"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested more than 64 levels deep"),
        (b"name: caf\xe9", "cannot be read (it is not UTF-8 (byte 9))"),
        (b"#" * (2 << 20), "cannot be read (it has 2 MiB, more than the limit of 1 MiB)"),
        (b"a: 'open", "not the YAML that is expected (while scanning a quoted scalar"),
    ],
)
def test_a_file_that_cannot_be_bounded_is_refused_before_hydra_reads_it(tmp_path, capsys, text, why):
    path = tmp_path / "topology" / "mine.yaml"
    path.parent.mkdir()
    path.write_bytes(text)
    said = refused(capsys, ["plan", "--config-dir", str(tmp_path), "topology=mine"], f"scaling: {path}: ")
    assert why in said


def test_a_pipe_in_it_is_not_waited_for(tmp_path):
    (tmp_path / "topology").mkdir()
    os.mkfifo(tmp_path / "topology" / "mine.yaml")
    with pytest.raises(InputError, match="it is a pipe; a regular file is expected"):
        require_readable(tmp_path)


def test_aliases_are_read_where_they_are_few():
    assert messages.load("a: &a {rate: 1e-4}\nb: *a\n", "here") == {"a": {"rate": 1e-4}, "b": {"rate": 1e-4}}
