"""Shared by the benchmarks: options, running `scaling`, reading its analysis, printing the result as the last line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ending import run

CANNOT = 77
"""Exit status where a benchmark cannot run on this machine."""
SCALING = (sys.executable, "-m", "scaling.cli")
ERROR_CHARS = 500


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints the benchmark's docstring as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def has_namespaces() -> bool:
    """Whether this machine can emulate hosts; prints a line where it cannot."""
    done = subprocess.run(["unshare", "-Urnm", "true"], check=False, capture_output=True)
    if done.returncode:
        print(
            "this machine allows no user namespaces (`unshare -Urnm true` fails), so hosts cannot be emulated"
        )
    return done.returncode == 0


def measure(folder: Path, *overrides: str) -> dict[str, Any]:
    """Run with these overrides in `folder` and return the analysis. SystemExit with its error when it fails."""
    return _analysis_after(folder, "run", *overrides, f"run_dir={folder}")


def analyze(folder: Path) -> dict[str, Any]:
    """Analyse the run in `folder` again. SystemExit with its error when that fails."""
    return _analysis_after(folder, "analyze", str(folder))


def _analysis_after(folder: Path, *words: str) -> dict[str, Any]:
    done = run([*SCALING, *words])
    if done.returncode:
        raise SystemExit(f"scaling {' '.join(words)}: status {done.returncode}\n{done.stderr[-ERROR_CHARS:]}")
    return read_analysis(folder)


def read_analysis(folder: Path) -> dict[str, Any]:
    """analysis.json of a run's folder."""
    return dict(json.loads((folder / "analysis.json").read_text(encoding="utf-8")))


def last_line(text: str) -> str:
    """The last line of what a program printed."""
    return (text.strip().splitlines() or ["it printed nothing"])[-1]


def result(benchmark: str, *, ok: bool, **figures: object) -> int:
    """Print the result as the last line. Returns the exit status: 0, or 1 where a bar is missed."""
    print(json.dumps({"benchmark": benchmark, **figures, "ok": ok}))
    return 0 if ok else 1


def skipped(benchmark: str, why: str) -> int:
    """Print why a benchmark cannot run here. Returns its exit status."""
    print(json.dumps({"benchmark": benchmark, "skipped": why}))
    return CANNOT
