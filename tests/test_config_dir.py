"""A folder of configuration of one's own adds names; it takes none that the program has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scaling.cli import main
from scaling.config_dir import named, require_own_names
from scaling.resources import folder


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_it_is_found_on_a_command_line(words):
    assert named(["model=mlp", *words]) == Path("mine")


def test_a_command_line_without_one():
    assert named(["model=mlp", "--config-dir"]) is None


def test_a_copy_of_ours_that_was_changed_is_refused_and_the_file_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder("conf") / "topology", "mine/topology")
    require_own_names(Path("mine"))  # as it is, it says the same as ours
    changed = Path("mine/topology/nvlink_node.yaml")
    changed.write_text(changed.read_text().replace("partition: nvlink", "partition: fast"))
    assert main(["plan", "--config-dir", "mine", "topology=nvlink_node"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling: mine/topology/nvlink_node.yaml: topology=nvlink_node is one of those")


def test_the_folder_of_another_program_will_do(tmp_path, monkeypatch):
    """Its own config.yaml stays its own: nothing of it is read, and nothing could have been meant by it."""
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text("database: mysql\n")
    assert main(["plan", "--config-dir", "conf", "topology=local", "world_sizes=[1]"]) == 0


def test_our_own_folder_is_no_other(capsys):
    assert main(["plan", "--config-dir", str(folder("conf")), "topology=local"]) == 0
