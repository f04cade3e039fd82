"""Standard streams that are closed or go away."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.commands import command, environment


@pytest.mark.parametrize("closed", ["| true", "2>&-", ">&-", ">&- 2>&- <&-"])
def test_a_command_ends_as_ever(closed, tmp_path):
    script = f"set -o pipefail; {' '.join(command(['--help']))} {closed}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_opened_later_does_not_get_what_is_printed(tmp_path):
    code = (
        "import os, sys; os.close(1); os.close(2); sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = None\n"
        "from scaling.cli.output import tolerate_closed\n"
        "tolerate_closed()\n"
        "file = open('kept.txt', 'w')\n"
        "print('out', flush=True); print('err', file=sys.stderr)\n"
        "file.write('mine'); file.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), check=True)
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_a_full_disk_is_still_an_error(tmp_path):
    with open(os.devnull if not os.path.exists("/dev/full") else "/dev/full", "w") as full:  # noqa: PTH110, PTH123
        done = subprocess.run(
            command(["--help"]),
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode != 0 or not os.path.exists("/dev/full")  # noqa: PTH110
