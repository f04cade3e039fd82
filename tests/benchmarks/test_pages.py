"""What `make bench` keeps of a benchmark, and its row on a page."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages", BENCHMARKS / "pages.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)  # as for a script that is run from there
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(pages, tmp_path):
    """measured(code): what is kept of a benchmark that is this code."""

    def run(code, *options):
        script, kept = tmp_path / "tiny.py", tmp_path / "results/tiny.json"
        script.write_text(code)
        status = pages.measure("tiny", script, kept, options)
        return status, json.loads(kept.read_text()) if kept.exists() else None

    return run


def test_the_command_on_the_page_has_the_options_that_it_was_given(pages, measured):
    _, document = measured("import sys; print(sys.argv[1:])", "--keep", "there")
    assert document["printed"] == ["['--keep', 'there']"]
    assert "`python benchmarks/tiny.py --keep there`" in pages.row(document)


def test_every_benchmark_is_on_one_page(pages):
    listed = [name for names in pages.PAGES.values() for name in names]
    scripts = {p.stem for p in BENCHMARKS.glob("*.py")} - {
        "pages",
        "ending",
        "harness",
        "emulated",
        "hosts",
        "zoo_loops",
    }
    assert sorted(listed) == sorted(scripts)


def test_the_pages_of_this_project_have_their_marks_once(pages):
    for page in pages.PAGES:
        text = (BENCHMARKS.parent / "docs" / page).read_text(encoding="utf-8")
        assert (text.count(pages.BEGIN), text.count(pages.END)) == (1, 1)


def test_how_a_benchmark_ended_is_on_the_page_with_its_conditions(pages, measured):
    status, document = measured('print("a  b\\n1  2")\nprint(\'{"benchmark": "tiny", "ok": true}\')')
    assert status == 0
    text = pages.filled(f"# Words\n{pages.BEGIN}\nold\n{pages.END}\nmore words\n", [document])
    assert text.startswith("# Words\n")
    assert text.endswith("more words\n")
    assert "old" not in text
    assert document["printed"][:2] == ["a  b", "1  2"]
    assert "every bar met" in text
    for condition in ("cores", "GiB", "Python", "torch", "commit"):
        assert condition in text
    assert pages.filled(text, [document]) == text


def test_a_missed_bar_is_said(pages, measured):
    status, document = measured('print("x")\nraise SystemExit(1)')
    assert status == 1
    assert "**a bar was missed**" in pages.row(document)


def test_one_that_cannot_run_here_leaves_what_was_measured_elsewhere(measured):
    _, before = measured('print("measured")')
    status, after = measured('print("no GPU")\nraise SystemExit(77)')
    assert status == 77
    assert after == before


def test_what_was_measured_stands_until_the_benchmark_changes(pages, measured, tmp_path):
    script, kept = tmp_path / "tiny.py", tmp_path / "results/tiny.json"
    measured("raise SystemExit(1)  # a bar was missed: that is a result")
    assert pages.stands(script, kept)
    script.write_text("raise SystemExit(0)  # another benchmark")
    assert not pages.stands(script, kept)


@pytest.mark.parametrize(("code", "options"), [("raise SystemExit(3)", []), ("", ["--quick"])])
def test_what_failed_or_had_options_of_its_own_is_measured_again(pages, measured, tmp_path, code, options):
    measured(code, *options)
    assert not pages.stands(tmp_path / "tiny.py", tmp_path / "results/tiny.json")


def test_what_another_machine_measured_is_measured_here(pages, measured, tmp_path):
    _, document = measured("")
    kept = tmp_path / "results/tiny.json"
    kept.write_text(json.dumps({**document, "conditions": {**document["conditions"], "cores": 999}}))
    assert not pages.stands(tmp_path / "tiny.py", kept)


def test_a_change_of_the_program_is_one_of_the_sources(pages, measured, tmp_path, monkeypatch):
    for name in pages.MEASURED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text(name)
    runner = tmp_path / "scaling/launchers/runner.py"
    runner.parent.mkdir()
    runner.write_text("a")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    script = tmp_path / "tiny.py"
    script.write_text("")
    before = pages.sources(script)
    runner.write_text("b")
    assert pages.sources(script) != before


def test_a_page_without_marks_is_refused(pages):
    with pytest.raises(ValueError, match="needs the lines"):
        pages.filled("# nothing", [])


PAGES = """
import sys
from pathlib import Path
import ending, pages

ending.GRACE_S = pages.GRACE_S = 1.0
here = Path(sys.argv[1])
ending.exit_with(lambda: pages.measure("tiny", here / "tiny.py", here / "tiny.json", [sys.argv[2]]))
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
    process = subprocess.Popen(
        [sys.executable, "-c", PAGES, str(tmp_path), STARTED.format(str(tmp_path))],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "begun").exists, process)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "in-order").exists()
