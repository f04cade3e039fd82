"""Run `scaling` in this process or in one of its own, and check that it refuses what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.processes import captured

from scaling import resources
from scaling.cli.main import main
from scaling.config.compose import requests
from scaling.settings.plan import Plan, make_plan

RUN_S = 240
"""The longest that a short run may take on a busy machine."""


def planned(*words: str) -> Plan:
    """The plan that `scaling plan WORDS` makes."""
    spec = requests("plan", list(words)).items[0].spec
    return make_plan(spec, run_id="20260101-000000-abc", created="", version="")


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "scaling.cli", *arguments]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the import path of the package under test."""
    return {**os.environ, "PYTHONPATH": resources.import_path(), **(changes or {})}


def run_scaling(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = RUN_S
) -> subprocess.CompletedProcess[str]:
    """`scaling ARGUMENTS` in a process of its own, to its end."""
    return captured(command(arguments), cwd=cwd, env=environment(env), timeout=timeout_s)


def start_scaling(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """`scaling ARGUMENTS` in a process of its own, left running; `prefix`: a program that starts it."""
    return subprocess.Popen(
        [*prefix, *command(arguments)],
        cwd=cwd,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_python(
    *arguments: str, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """`python ARGUMENTS`, left running; it prints text into pipes. `options`: those of subprocess.Popen."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=environment(env), **pipes | options)


def refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *said: str, status: int = 2) -> str:
    """Check that `scaling ARGUMENTS` is refused with one line on stderr that holds each of `said`; return the line."""
    capsys.readouterr()
    code = main(list(arguments))
    line = assert_refusal(code, *capsys.readouterr(), *said, status=status)
    assert line.startswith("scaling: "), line
    return line


def assert_refusal(code: int, out: str, err: str, *said: str, status: int = 2) -> str:
    """Check that a command ended with `status`, one line on stderr and nothing on stdout; return the line."""
    assert (code, out, err.count("\n")) == (status, "", 1), (
        f"exit status {code}, stdout {out!r}, stderr {err!r}"
    )
    missing = [text for text in said if text not in err]
    assert not missing, f"{missing} not in {err!r}"
    return err
