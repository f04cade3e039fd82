"""`scaling doctor` where there is nothing to examine."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from scaling.cli.main import main
from scaling.records.files import write_json


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
