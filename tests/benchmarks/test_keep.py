"""What `make bench` keeps of a benchmark."""

import json

import pytest
from support.benchmark_parts import BENCHMARKS, benchmark_part
from support.commands import start_python
from support.processes import wait_until


@pytest.fixture(scope="module")
def keep():
    return benchmark_part("keep")


@pytest.fixture
def measured(keep, tmp_path):
    """measured(code): what is kept of a benchmark that is this code."""

    def run(code, *options):
        script, kept = tmp_path / "tiny.py", tmp_path / "results/tiny.json"
        script.write_text(code)
        status = keep.measure("tiny", script, kept, options)
        return status, json.loads(kept.read_text()) if kept.exists() else None

    return run


def test_what_is_printed_is_kept_with_its_options_and_the_machine(keep, measured):
    status, document = measured("import sys; print(sys.argv[1:])", "--keep", "there")
    assert (status, document["printed"], document["options"]) == (
        0,
        ["['--keep', 'there']"],
        ["--keep", "there"],
    )
    assert document["conditions"].keys() >= {"when", "scaling", *keep.MACHINE}


def test_every_benchmark_is_listed_once(keep):
    helpers = ("keep", "ending", "harness", "emulated", "hosts", "zoo_loops", "loop_kinds")
    scripts = {p.stem for p in BENCHMARKS.glob("*.py")} - {*helpers}
    assert sorted(keep.NAMES) == sorted(scripts)


def test_a_missed_bar_is_said(keep, measured):
    status, document = measured('print("x")\nraise SystemExit(1)')
    assert status == 1
    assert document["status"] == 1
    assert document["printed"] == ["x"]


def test_one_that_cannot_run_here_leaves_what_was_measured_elsewhere(measured):
    _, before = measured('print("measured")')
    status, after = measured('print("no GPU")\nraise SystemExit(77)')
    assert status == 77
    assert after == before


def test_what_was_measured_stands_until_the_benchmark_changes(keep, measured, tmp_path):
    script, kept = tmp_path / "tiny.py", tmp_path / "results/tiny.json"
    measured("raise SystemExit(1)  # a bar was missed: that is a result")
    assert keep.stands(script, kept)
    script.write_text("raise SystemExit(0)  # another benchmark")
    assert not keep.stands(script, kept)


@pytest.mark.parametrize(("code", "options"), [("raise SystemExit(3)", []), ("", ["--quick"])])
def test_what_failed_or_had_options_of_its_own_is_measured_again(keep, measured, tmp_path, code, options):
    measured(code, *options)
    assert not keep.stands(tmp_path / "tiny.py", tmp_path / "results/tiny.json")


def test_what_another_machine_measured_is_measured_here(keep, measured, tmp_path):
    _, document = measured("")
    kept = tmp_path / "results/tiny.json"
    kept.write_text(json.dumps({**document, "conditions": {**document["conditions"], "cores": 999}}))
    assert not keep.stands(tmp_path / "tiny.py", kept)


def test_a_change_of_the_program_is_one_of_the_sources(keep, measured, tmp_path, monkeypatch):
    for name in keep.MEASURED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text(name)
    runner = tmp_path / "scaling/launchers/runner.py"
    runner.parent.mkdir()
    runner.write_text("a")
    monkeypatch.setattr(keep, "ROOT", tmp_path)
    script = tmp_path / "tiny.py"
    script.write_text("")
    before = keep.sources(script)
    runner.write_text("b")
    assert keep.sources(script) != before


KEEP = """
import sys
from pathlib import Path
import ending, keep

ending.GRACE_S = keep.GRACE_S = 1.0
here = Path(sys.argv[1])
ending.exit_with(lambda: keep.measure("tiny", here / "tiny.py", here / "tiny.json", [sys.argv[2]]))
"""
TINY = """
import sys
import ending

ending.GRACE_S = 1.0
ending.exit_with(lambda: ending.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
STARTED = """
import pathlib, signal, sys, time
here = pathlib.Path({!r})
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), (here / "in-order").touch(), sys.exit()))
(here / "begun").touch()
time.sleep(60)
"""


def test_what_a_benchmark_started_ends_in_order_when_only_the_outermost_is_told(tmp_path):
    """As by `kill`, which no other process hears."""
    (tmp_path / "tiny.py").write_text(TINY)
    keep = ("-c", KEEP, str(tmp_path), STARTED.format(str(tmp_path)))
    process = start_python(*keep, env={"PYTHONPATH": str(BENCHMARKS)}, stdout=None)
    wait_until((tmp_path / "begun").exists, process)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "in-order").exists()
