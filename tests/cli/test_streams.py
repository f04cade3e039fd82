"""Standard streams that are closed or go away."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import command, environment, start_python
from support.processes import captured


@pytest.mark.parametrize("closed", ["| true", "2>&-", ">&-", ">&- 2>&- <&-"])
def test_a_command_ends_as_ever(closed, tmp_path):
    script = f"set -o pipefail; {' '.join(command(['--help']))} {closed}"
    done = captured(["bash", "-c", script], cwd=tmp_path, env=environment())
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


def test_a_pipe_that_does_not_block_gets_all_of_it():
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    code = (
        "from scaling.cli.output import say, tolerate_closed\n"
        "tolerate_closed(); say('x' * 100_000); say('end')\n"
    )
    with start_python("-c", code, stdout=writing) as process:
        os.close(writing)
        time.sleep(0.5)
        with os.fdopen(reading, "rb") as file:
            printed = file.read()
        assert (process.wait(60), process.stderr.read()) == (0, "")
    assert printed == b"x" * 100_000 + b"\nend\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict"])
def test_a_name_that_the_terminal_cannot_show_is_escaped(encoding, tmp_path):
    code = "from scaling.cli.output import say, tolerate_closed\ntolerate_closed(); say('runs/日本')\n"
    done = captured([sys.executable, "-c", code], env=environment({"PYTHONIOENCODING": encoding}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs/\\u65e5\\u672c\n", "")


def test_a_machine_without_a_temporary_folder_is_an_error_of_one_line(tmp_path):
    """As where /tmp and the working directory are on a full disk."""
    code = (
        "import sys, tempfile\n"
        "tempfile._candidate_tempdir_list = lambda: ['/nowhere']\n"
        "from scaling.cli.main import main\n"
        "sys.exit(main(['plan', '--time', 'model=mlp', 'topology=local', 'topology.device=cpu', 'world_sizes=[1]']))\n"
    )
    done = captured([sys.executable, "-c", code], cwd=tmp_path, env=environment())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "scaling: no temporary folder can be written to; make room in /tmp, or set TMPDIR"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["help", "run"], ["-sc", "install=bash"]])
def test_a_full_disk_is_an_error_of_one_line(words, tmp_path):
    script = f"{' '.join(command(words))} >/dev/full"
    done = captured(["bash", "-c", script], cwd=tmp_path, env=environment())
    assert done.returncode == 1
    assert done.stderr == "scaling: standard output: No space left on device\n"
