"""How a benchmark ends after Ctrl-C."""

import os
import signal
import time

import pytest
from support.benchmark_parts import BENCHMARKS
from support.commands import start_python
from support.processes import wait_until

SCRIPT = """
import sys
from ending import exit_with, run

def main():
    run([sys.executable, "-c", sys.argv[1]], check=True)
    return 0

exit_with(main)
"""
CHILD = """
import pathlib, time
pathlib.Path("begun").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path("in-order").touch()
"""


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda p: p.stem)
def test_every_benchmark_ends_so(path):
    text = path.read_text(encoding="utf-8")
    helpers = ("ending", "harness", "emulated", "hosts", "zoo_loops", "loop_kinds")
    assert path.stem in helpers or text.rstrip().endswith("exit_with(main)")


def started(folder, child):
    script = folder / "tiny.py"
    script.write_text(SCRIPT)
    alone = {"cwd": folder, "stdout": None, "start_new_session": True}
    return start_python(str(script), child, env={"PYTHONPATH": str(BENCHMARKS)}, **alone)


def test_ctrl_c_is_one_line_and_what_was_started_ends_in_order(tmp_path):
    process = started(tmp_path, CHILD)
    wait_until((tmp_path / "begun").exists, process)
    time.sleep(0.2)  # into its try
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[1] == "tiny: interrupted\n"
    assert process.returncode == 130
    assert (tmp_path / "in-order").exists()


def test_a_child_that_fails_is_no_interruption(tmp_path):
    process = started(tmp_path, "raise SystemExit(3)")
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "CalledProcessError" in said
