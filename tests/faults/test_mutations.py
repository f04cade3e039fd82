"""Records that were changed by accident: no figure that cannot be, and none that moves without a warning.

`SCALING_MUTATIONS=2000 pytest tests/faults/test_mutations.py -s` makes 2,000 single digits and 2,000 other changes, and
prints what came of them.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import re
import resource
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from support import mutations
from support.possible import assert_possible
from support.simulated_machines import write_machines

from scaling.analysis.results import Analysis
from scaling.analysis.run import derive
from scaling.errors import ScalingError
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

COUNT = int(os.environ.get("SCALING_MUTATIONS", "80"))
MOVED = 0.2
TERM_MIN = 0.01
SECONDS = 20
MEMORY_KIB = 2**20
NAMES_PLACE = re.compile(r"block|rank|launch|round|plan\.json|status\.json|telemetry")


@pytest.fixture(scope="module")
def run(simulate, cluster, tmp_path_factory):
    """A small run with a late rank: three ranks, five rounds, and every main figure known."""
    folder = RunFolder(tmp_path_factory.mktemp("mutations") / "run")
    late = cluster.Straggler(rank=1, extra_ns=6e6)
    simulate(
        cluster.Truth(
            world_sizes=(3,), hosts=3, rounds=5, steps=4, lead_in=1, channels=1, stragglers=(late,)
        ),
        folder.path,
    )
    write_machines(folder, read_plan(folder))
    return folder


def main_figures(analysis: Analysis) -> dict[str, float]:
    found = {}
    for point in analysis.points:
        for name in ("step_ms", "samples_per_s", "efficiency"):
            number = getattr(point, name)
            if number is not None:
                found[f"{name} at {point.world_size}"] = number.value
        for field in dataclasses.fields(point.loss) if point.loss else ():
            term = getattr(point.loss, field.name)
            if term is not None:
                found[f"loss.{field.name} at {point.world_size}"] = term.value
    return found


def said(analysis: Analysis) -> set[str]:
    """What names a place: warnings, and trials that are not whole."""
    lines = [*analysis.quality.warnings, *(t.error for t in analysis.trials if t.error)]
    return {line for line in lines if NAMES_PLACE.search(line) or "doubtful" in line}


class Trial:
    """Applies changes to a run one after the other, and notes what comes of them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._files = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
        whole = derive(folder)[0].analysis
        self._said = said(whole)
        self._known = {
            name: value
            for name, value in main_figures(whole).items()
            if not name.startswith("loss.") or abs(value) > TERM_MIN
        }
        self.outcomes: Counter[str] = Counter()
        self.unsaid: list[str] = []
        self.longest_s = 0.0

    def run(self, change: mutations.Change, seed: int) -> None:
        what = change(self.folder, random.Random(seed))
        begin = time.process_time()
        try:
            analysis = derive(self.folder)[0].analysis
        except ScalingError as error:
            self.outcomes["refused"] += 1
            if "\n" in str(error):
                raise AssertionError(what) from error
        else:
            self._compare(analysis, f"{seed}: {what}")
        finally:
            self.longest_s = max(self.longest_s, time.process_time() - begin)
            self._restore()

    def _compare(self, analysis: Analysis, what: str) -> None:
        try:
            assert_possible(analysis)
        except AssertionError as error:
            raise AssertionError(what) from error
        figures = main_figures(analysis)
        moved = [
            f"{name}: {old:.4g} -> {figures.get(name, float('nan')):.4g}"
            for name, old in self._known.items()
            if name not in figures or abs(figures[name] / old - 1) > MOVED
        ]
        new = said(analysis) - self._said
        self.outcomes[("moved" if moved else "not moved") + (", said" if new else ", not said")] += 1
        if moved and not new:
            self.unsaid.append(f"{what}: {'; '.join(moved)}")

    def _restore(self) -> None:
        shutil.rmtree(self.folder.launch(1).path, ignore_errors=True)
        for path, content in self._files.items():
            if not path.is_file() or path.read_bytes() != content:
                Path(path).write_bytes(content)


def held(run: RunFolder, changes: list[mutations.Change], capsys: pytest.CaptureFixture[str]) -> None:
    """All of them in this process: nothing raised, nothing impossible, nothing moved unsaid, nothing large or slow."""
    gc.collect()  # what was read before holds a folder of tables in the run's
    trial = Trial(run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed, change in enumerate(changes):
        trial.run(change, seed)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with capsys.disabled():
        print(
            f"\n{len(changes)} changes: {dict(sorted(trial.outcomes.items()))}; "
            f"longest {trial.longest_s:.1f} s of processor time, {grown / 1024:.0f} MiB more memory"
        )
        print("\n".join(trial.unsaid[:40]))
    assert trial.unsaid == []
    assert trial.longest_s < SECONDS
    assert grown < MEMORY_KIB


@pytest.mark.slow
def test_single_digits(run, capsys):
    """Half of them after the checksums were made, half before."""
    held(run, [mutations.digit, mutations.digit_before] * (COUNT // 2), capsys)


@pytest.mark.slow
def test_lines_fields_files_and_documents(run, capsys):
    kinds = mutations.STRUCTURAL
    held(run, [kinds[k % len(kinds)] for k in range(COUNT)], capsys)
