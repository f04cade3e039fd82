"""The files of a launch, and stand-ins for Slurm's commands."""

from __future__ import annotations

import pytest

from scaling.records.paths import RunFolder


@pytest.fixture
def launch(tmp_path):
    folder = RunFolder(tmp_path).launch(0)
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch):
    """command(name, line): a shell's line in place of one of Slurm's commands; there are no others."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def stand_in(name: str, line: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line.format(run=tmp_path / 'run', here=tmp_path)}\n")
        path.chmod(0o755)

    return stand_in
