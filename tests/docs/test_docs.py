"""The docs keep their word: links lead somewhere, and every command in them is one that the program takes."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.cli.main import main
from scaling.cli.simulated_run import is_simulated
from scaling.cli.verbs import VERBS
from scaling.config import schema
from scaling.config.compose import cut
from scaling_simulator.simulate.request import to_simulation
from scaling_simulator.simulate.simulations import topologies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MEASURING = {"run", "submit"}
"""These would measure: `plan` composes, checks and plans the same line."""


def commands(page: Path) -> list[str]:
    """Lines of code blocks that call the program, without their comments."""
    found, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and line.strip().startswith("scaling "):
            found.append(re.split(r"\s{2,}|\s#\s", line.strip())[0])
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def slug(title: str) -> str:
    """An anchor as GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            there = linked.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", there, re.MULTILINE)
            marked = re.findall(r'<a id="([^"]+)">', there)
            assert anchor in {*marked, *(slug(h.replace("`", "")) for h in headings)}, target


OURS = r"`((?:scaling|simulator|tests|benchmarks|conf|launch|slurm|docs|examples)/[\w./-]*)`"
IN_ROOMS = r"`((?:spec|records|worker|config|launchers|analysis|report|cli)/[\w/]+\.py)`"
READERS_FILES = ("NAME", "mine")
"""Marks of files that the reader is to make."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_checkout_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(OURS, text) + [f"scaling/{path}" for path in re.findall(IN_ROOMS, text)]
    missing = {path for path in named if not (ROOT / path).exists()}
    assert {path for path in missing if not any(mark in path for mark in READERS_FILES)} == set()


def lines():
    found = {}
    for page in PAGES:
        for line in commands(page):
            found.setdefault(line, name_of(page))
    return [pytest.param(line, id=f"{page}: {line}") for line, page in found.items()]


OPTIONAL = re.compile(r"\[(?:--?[a-z]|overrides)[^\]]*\]|\.\.\.")
READERS_OWN = (
    "mine",
    "/data",
    "--config-dir",
    "NAME",
    "PATH",
    "FILE",
    "LOG",
    "DIR",
    "RATIO",
    "--resume",
    "--simulate",
    "predict RUN parallel=",
    "predict RUN fsdp.",
    "cluster=ours",
    "=a,b",
    "cost.usd_per_gpu_hour=]",
    "no_p2p",
    "local_shared_gpu",
)
"""What stands for something of the reader's, GPUs among it, or takes minutes: nothing is composed or read there."""
READS = {"analyze", "compare", "predict", "report"}
"""These need measured runs alone, and are run as they stand."""
HYDRAS = {"--cfg", "--config-dir", "--help", "--multirun"}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(*line.values, id=line.id, marks=() if line.id.startswith("README") else pytest.mark.slow)
        for line in lines()
    ],
)
def test_the_program_takes_every_command(line, runs, monkeypatch, capsys):
    """Its verb and options are known; what reads is run, what measures is composed, checked and planned."""
    monkeypatch.chdir(runs)
    line = OPTIONAL.sub("", line).replace("runs/<date>/<time>-<hash>", "RUN")
    verb, *words = shlex.split(line)[1:]
    if verb.startswith("-"):
        return
    assert verb in VERBS
    if verb == "launch":
        words, script = cut(words)
        assert script
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    known = {option.name for option in VERBS[verb].options}
    assert all(option in HYDRAS or option in known for option in options)
    if any(mark in line for mark in READERS_OWN):
        return
    if verb in READS:
        first, second = sorted(str(path.relative_to(runs)) for path in runs.glob("runs/2*/*"))
        names = iter((first, second, first))
        words = [next(names) if word == "RUN" else word for word in words if word != "--open"]
        assert main([verb, *words]) == 0, capsys.readouterr().err
    elif verb == "run" and is_simulated(words):
        assert [to_simulation(each) for each in topologies(words)]
    elif verb in MEASURING | {"plan"}:
        asked = [word for word in words if word not in {"--dry-run", "--wait"}]
        room = [] if "topology=" in line else ["topology.ranks_per_host=8"]  # as on the reader's machine
        assert main(["plan", *asked, *room]) == 0, capsys.readouterr().err


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "report" / "index.html").exists()


def keys(of: type, above: str = "") -> Iterator[str]:
    """Every key below a group of the schema; what stands in a list is told where the list is."""
    hints = typing.get_type_hints(of)
    for field in dataclasses.fields(of):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from keys(hints[field.name], f"{above}{field.name}.")
        else:
            yield above + field.name


def test_every_key_is_on_its_page():
    told = set(re.findall(r"`([\w.]+)`", (ROOT / "docs/config.md").read_text()))
    told |= {key.rpartition(".")[2] for key in told}
    of_its_own = {"name"}  # each group's own file says it
    assert {
        key for key in keys(schema.WhatIfConfig) if key.rpartition(".")[2] not in told | of_its_own
    } == set()
