"""Measure the demo: how plain the contrast of its two links is, and how long it takes.

    python benchmarks/demo.py [--times 3] [--busy 1] [--into-docs]

Bar, without --busy: each demo within 90 s; in the middle one of them an efficiency of at most 65 % over the slow link
and of 90 % or more over the fast link, and a throughput ratio whose interval lies above 1. How far the slow link holds
the training back depends on how fast the processor is; that it does so, plainly, does not.
No share's whole interval lies above 100 % without its reason beside it, in any of them.

`--busy N` runs N busy processes beside it; only the reasons are then a bar. `--into-docs` writes the last demo's output
into README.md and docs/tour.md, and its figures into docs/images.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from ending import exit_with, run

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("emulated_pcie", "emulated_nvlink")
MOST_S, SLOW_MOST, FAST_LEAST = 90.0, 0.65, 0.90
FIGURES = {"waterfall-2.svg": "waterfall.svg", "timeline-2.svg": "timeline.svg"}
SHARES = ("efficiency", "efficiency_loaded", "mfu", "hfu")
COMM_SHARES = ("curve_share", "nominal_share", "hidden_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One demo: what it said, and how long it took."""

    took_s: float
    printed: str
    report: str
    """The slow link's."""
    analyses: tuple[dict[str, Any], ...]
    ratio: dict[str, Any]

    @property
    def efficiencies(self) -> list[float]:
        """At two ranks, over the slow and the fast link."""
        return [analysis["points"][-1]["efficiency"]["value"] for analysis in self.analyses]


def measured(folder: Path) -> Demo:
    """Run the demo as `make demo` does, into `folder`."""
    begin = time.monotonic()
    done = run(
        [*harness.SCALING, "run", "-m", "experiment=demo", f"topology={','.join(LINKS)}", f"run_dir={folder}"]
    )
    took_s = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"the demo: status {done.returncode}\n{done.stderr[-harness.ERROR_CHARS :]}")
    compared = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return Demo(
        took_s=took_s,
        printed=done.stdout,
        report=(folder / "0/report.txt").read_text(encoding="utf-8"),
        analyses=tuple(harness.read_analysis(folder / str(k)) for k in range(len(LINKS))),
        ratio=compared["points"][-1]["ratio"],
    )


def without_reason(analysis: dict[str, Any]) -> Iterator[str]:
    """Shares whose whole interval lies above 100 % and beside which no reason stands."""
    warnings = " ".join(analysis["quality"]["warnings"])
    roofline = (analysis["roofline"] or {}).get("above", "")
    for point in analysis["points"]:
        shares = {name: point.get(name) for name in SHARES}
        shares |= {name: (point["comm"] or {}).get(name) for name in COMM_SHARES}
        for name, share in shares.items():
            if not share or (share["low"] or 0.0) <= 1:
                continue
            at = f"{name} at {point['world_size']} ranks"
            if not (roofline if name in ("mfu", "hfu") else at in warnings):
                yield f"{at} is {share['value']:.1%} without a reason"


def readme_lines(demo: Demo) -> str:
    """The first lines of the report over the slow link."""
    return _lead(demo.report)


def tour_lines(demo: Demo) -> str:
    """The first lines, the key figures, and the ratios of the comparison; figures show the step and its loss."""
    steps = "# key figures\n" + _between(demo.report, "# key figures\n", "# transfer, skew")
    ratios = "# throughput, other over base\n" + _between(
        _comparison(demo), "# throughput, other over base\n", "# settings that differ"
    )
    return f"{_lead(demo.report)}...\n{steps}...\n{ratios}{_answer(_comparison(demo))}"


def _lead(report: str) -> str:
    """The answer, why, how sure and what to try: all above the first line of conditions, but for where the page is."""
    return re.sub(r"^page .*\n", "", re.split(r"^#", report, flags=re.MULTILINE)[0], flags=re.MULTILINE)


def _comparison(demo: Demo) -> str:
    return demo.printed[demo.printed.rindex("# throughput, other over base") :]


def _answer(text: str) -> str:
    return "# answer\n" + re.split(r"^(?=[^ ])", _between(text, "# answer\n", r"\Z"), flags=re.MULTILINE)[0]


def _between(text: str, begin: str, end: str) -> str:
    """What follows `begin`, up to a line that begins with `end`, or to the end of the text."""
    return re.split(rf"^{end}", text[text.index(begin) + len(begin) :], flags=re.MULTILINE)[0]


def into_docs(demo: Demo, folder: Path) -> None:
    """Put a demo's output and figures in place of those that the docs show."""
    _show(ROOT / "README.md", "answer", readme_lines(demo))
    _show(ROOT / "docs/tour.md", "answer", tour_lines(demo))
    figures = folder / "figures"
    run([*harness.SCALING, "report", str(folder / "0"), "--figures", str(figures)], check=True)
    for drawn, kept in FIGURES.items():
        shutil.copy(figures / drawn, ROOT / "docs/images" / kept)


def _show(page: Path, begin: str, lines: str) -> None:
    """Replace the code block of a page that begins with `begin`."""
    text, block = page.read_text(encoding="utf-8"), f"```\n{lines}```"
    page.write_text(
        re.sub(rf"```\n{begin}.*?```", lambda _: block, text, count=1, flags=re.DOTALL), encoding="utf-8"
    )


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--into-docs", action="store_true")
    given = parser.parse_args()
    if not harness.has_namespaces():
        return harness.CANNOT
    demos: list[Demo] = []
    with ExitStack() as kept:
        parent = Path(kept.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(given.busy):
            busy = kept.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            kept.callback(busy.kill)
        print(
            f"{'demo':>4} {'took s':>7}  {'slow link':>18}  {'fast link':>18}  {'fast over slow':>16}",
            flush=True,
        )
        for k in range(given.times):
            demo = measured(parent / str(k))
            demos.append(demo)
            shown = [_shown(a["points"][-1]["efficiency"]) for a in demo.analyses]
            print(
                f"{k:>4} {demo.took_s:7.1f}  {shown[0]:>18}  {shown[1]:>18}  {_shown(demo.ratio):>16}",
                flush=True,
            )
        if given.into_docs:
            into_docs(demos[-1], parent / str(given.times - 1))
    doubtful = [line for demo in demos for analysis in demo.analyses for line in without_reason(analysis)]
    for line in doubtful:
        print(line)
    slow, fast = (
        sorted(each)[len(demos) // 2] for each in zip(*(d.efficiencies for d in demos), strict=True)
    )
    ratio = sorted((d.ratio for d in demos), key=lambda r: r["value"])[len(demos) // 2]
    longest_s = max(d.took_s for d in demos)
    plain = slow <= SLOW_MOST and fast >= FAST_LEAST and (ratio["low"] or 0.0) > 1
    return harness.result(
        "demo",
        ok=not doubtful and (bool(given.busy) or (plain and longest_s <= MOST_S)),
        longest_s=round(longest_s, 1),
        slow=round(slow, 3),
        fast=round(fast, 3),
        ratio=round(ratio["value"], 2),
    )


def _shown(measured: dict[str, Any]) -> str:
    low, high = measured["low"], measured["high"]
    within = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{measured['value']:.2f}{within}"


if __name__ == "__main__":
    exit_with(main)
