"""Inject one fault at a time into small models of every family and into loops of one's own; see whether it is named.

    python benchmarks/zoo.py [--only WORD...] [--part K/N] [--keep FOLDER]

Two emulated hosts of one rank each. 36 runs of `measure=quick` are the design of scaling/analysis/selftest/grade.py,
and 14 loops of one's own with a Probe (benchmarks/zoo_loops.py). A fault has to be the first verdict, with the right
rank and phase; what was not put in must not be named. What tiny models on two cores really lose (the link, neighbours,
DDP's own work, overlap) may be named beside the fault. Bars: 95 % of the cells right, no false cause on a control, none
anywhere at high confidence, and the cost that is found within 5 % or 3 ms of what was put in, in the median.

All cells take some 25 minutes. `--part 1/3` runs every third of them from the first on, `--only` those whose name has
one of the words. With `--keep` runs stay in FOLDER; cells that it holds already are analysed again and not run anew.
Exit 1 if a bar is missed.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
import zoo_loops
from ending import exit_with

from scaling.analysis.results import SelfTestCase
from scaling.analysis.selftest import grade
from scaling.analysis.selftest.grade import FaultCase
from scaling.cli.verbs.selftest import graded, planned, run_case
from scaling.records.paths import RunFolder

RIGHT, OFF, OFF_MS = 0.95, 0.05, 3.0

Graded = Mapping[str, SelfTestCase | None]
"""By the name of the cell; None for one that measured nothing."""


@dataclass(frozen=True)
class Cells:
    """Cells that are measured together: one run, or the loops of one launch."""

    cases: tuple[FaultCase, ...]
    measure: Callable[[Path], Graded]
    """Measure, or analyse what the folder holds already."""

    @property
    def folder(self) -> str:
        """Name of their folder."""
        return self.cases[0].name.replace(", ", "-").replace(" ", "_")


def of_design(case: FaultCase) -> Cells:
    """One run of `scaling run`'s measurement."""

    def measure(folder: Path) -> Graded:
        run, where = planned(case, []), RunFolder(folder)
        assert run is not None
        if where.status.exists():
            return {case.name: graded(case, where, run.plan)}
        graded_case, interrupted = run_case(run, where)
        if interrupted:
            raise KeyboardInterrupt
        return {case.name: graded_case}

    return Cells((case,), measure)


def of_loop(name: str) -> Cells:
    """A loop of one's own, without and with a fault, in one launch."""

    def measure(folder: Path) -> Graded:
        return zoo_loops.measured(name, folder)

    return Cells(zoo_loops.cases(name), measure)


def line(case: FaultCase, cell: SelfTestCase | None, took_s: float) -> str:
    """One cell as it ends."""
    if cell is None:
        return f"MISS {case.name:44} measured nothing"
    ok = cell.hit and not cell.false_alarms
    off = (
        ""
        if cell.attributed_ms is None or cell.expected_ms is None
        else f"{cell.attributed_ms - cell.expected_ms:+6.1f} ms"
    )
    false = "  ".join(
        f"false: {cause}{' (sure)' * (cause in cell.sure_alarms)}" for cause in cell.false_alarms
    )
    busy = "  contended" if cell.contended and not case.contended else ""
    return (
        f"{'ok  ' if ok else 'MISS'} {case.name:44} {cell.first:15} {off:>9}  step {cell.step_ms.value:4.0f} ms"
        f"  {took_s:3.0f} s{busy}  {false}"
    ).rstrip()


def table(cells: Sequence[tuple[FaultCase, SelfTestCase | None]]) -> str:
    """Fault by family: right cells of all."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for case, cell in cells:
        family, fault = case.name.split(", ")
        fault = fault.removeprefix("rank 0 ").removeprefix("rank 1 ")
        rows[fault][family] = "ok" if cell is not None and cell.hit and not cell.false_alarms else "MISS"
    families = [*grade.FAMILIES, *zoo_loops.LOOPS]
    head = f"{'':20}" + "".join(f"{f[:11]:>12}" for f in families)
    return "\n".join(
        [
            head,
            *(
                f"{fault:20}" + "".join(f"{row.get(f, ''):>12}" for f in families)
                for fault, row in rows.items()
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cells, print each, and hold all of them against the bars."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="words; cells whose name has one of them")
    parser.add_argument("--part", default="1/1", help="such as 1/3")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which are deleted otherwise")
    asked = parser.parse_args(arguments)
    if not harness.has_namespaces():
        return harness.skipped("zoo", "no user namespaces")
    part, parts = map(int, asked.part.split("/"))
    every = [*map(of_design, grade.MODEL_CASES), *map(of_loop, zoo_loops.LOOPS)]
    every = [
        cells
        for cells in every[part - 1 :: parts]
        if not asked.only or any(word in case.name for case in cells.cases for word in asked.only)
    ]
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="zoo-"))
    ended: list[tuple[FaultCase, SelfTestCase | None]] = []
    try:
        for cells in every:
            begin = time.monotonic()
            graded_cells = cells.measure(folder / cells.folder)
            took_s = (time.monotonic() - begin) / len(cells.cases)
            for case in cells.cases:
                ended.append((case, graded_cells[case.name]))
                print(line(case, graded_cells[case.name], took_s), flush=True)
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(ended))
    return judged(ended)


def judged(ended: Sequence[tuple[FaultCase, SelfTestCase | None]]) -> int:
    """Hold the cells against the bars and print the result."""
    results = [cell for _, cell in ended if cell is not None]
    right = sum(cell.hit and not cell.false_alarms for cell in results) / max(1, len(ended))
    controls = [cell for cell in results if cell.name.endswith("control") and cell.false_alarms]
    surely = [cell for cell in results if cell.sure_alarms]
    off = [
        (abs(cell.attributed_ms - cell.expected_ms), cell.expected_ms)
        for cell in results
        if cell.attributed_ms is not None and cell.expected_ms is not None
    ]
    typical_ms = statistics.median(ms for ms, _ in off) if off else 0.0
    within = [ms <= max(OFF * put, OFF_MS) for ms, put in off]
    print(
        f"{right:.1%} of {len(ended)} cells right; cost off by {typical_ms:.1f} ms in the median, "
        f"{sum(within)} of {len(within)} within {OFF:.0%} or {OFF_MS:g} ms"
    )
    ok = right >= RIGHT and not controls and not surely and 2 * sum(within) >= len(within)
    return harness.result(
        "zoo",
        ok=ok,
        cells=len(ended),
        right=round(right, 3),
        false_on_controls=len(controls),
        surely_false=len(surely),
        off_ms=round(typical_ms, 2),
    )


if __name__ == "__main__":
    exit_with(main)
