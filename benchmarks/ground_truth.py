"""Run over links of known speed with faults of known cost, and compare the results with the truth.

DDP (truth_parts/replicated.py). 100, 200, 500 Mbit and 1 Gbit x 2 and 4 emulated hosts (synthetic compute; a real model
at 2 hosts up to 500 Mbit) x clean, stragglers of 20, 50 and 100 ms on one rank, an input stall of 30 ms. The truth:

- transfer: bytes / (rate x 1448/1514), the TCP payload that the shaped link can carry;
- a stall of d ms in one rank's forward or input delays every bucket of that rank by d: it costs d;
- the link is the same with and without a straggler; losses close.

Sharded (truth_parts/sharded.py). FSDP over 2 and 4 emulated hosts, and HSDP over 2 and 4 of two ranks each, at 200, 500
and 1000 Mbit. FSDP over 2 and 4 and HSDP over 4 simulated accelerators, at 1, 5 and 20 GB/s on the virtual clock, whose
times are exact on any machine. Clean, and with a rank that is 30 ms late in forward. The truth: bytes by arithmetic;
transfer of each kind by bytes over rate; a late rank costs what it is late; the step closes. More than two ranks a core
use what a late rank leaves free: it costs there as much as the step takes longer than in the same cell without it.

    python benchmarks/ground_truth.py [--cells quick|most|ddp|all|sharded|links|simulated] [--out FILE] [--keep DIR]

ddp is all of DDP's grid, quick and most are parts of it; sharded is all of the sharded cells, links and simulated are
parts of these.

The interval of DDP's bandwidth is finer than that ideal, so it is judged against what the emulated link does in full:
each time it has been idle the shaper lets a burst through for free, and each busy period pays 2 alpha (alpha: the
median over this grid's runs with as many hosts; it does not depend on the rate). It is two whatever the number of
hosts: Gloo's ring keeps two segments of a chunk in flight, so that one travels while the other is on the wire, and
waits for the last of them only at the end of the reduce-scatter and of the all-gather (gloo/allreduce.cc, `ring`).
`held` is that; `bare` is whether the interval holds bytes / rate alone.

A contended run (other programs or a hypervisor took the cores) is measured again, twice at most; the last one counts
even if it is contended. `again` is the number of repetitions; `!` marks a last run that was contended too.

Beside each DDP run of synthetic compute a plain loop sends the same buckets over the same links (truth_parts/plain.py):
it uses nothing of this project, and what it sees of the links is what any program does. `loop` is the transfer compared
with it, and whether the interval of the difference holds nothing. `--no-loop` leaves it out, and its bars.

--keep DIR keeps the runs there. Whole runs that DIR already holds are analysed instead of measured; one that was cut
off is measured again. So the benchmark can be ended at any time and goes on where it was.

Bars (exit 1 when missed). DDP: pooled bias of transfer <= 3 %, each within 5 %, its interval holds what the link does
in >= 90 %; A/A ratios hold 1 in >= 90 %; pooled bias of the straggler's cost <= 5 %, right rank and phase each time,
bandwidth moved by <= 5 %; beside the plain loop each within 3 %, and equal by the interval of the difference in
>= 90 %; closure and unexplained within the greater of 3 % and the A/A floor. Sharded: bytes exact; pooled
bias of the transfer of each kind <= 3 %; of a late rank's cost <= 5 %; with more than two ranks a core, that cost
beyond the intervals of the pair and its own <= 5 % of what the rank is late; right rank and phase each time; closure
within the greater of 3 % and the A/A floor. Exit 77 where the cells need namespaces and there are none.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import harness
from ending import exit_with
from truth_parts import replicated, sharded
from truth_parts.runs import measure

PLACES = {
    "all": (sharded.LINKS, sharded.SIMULATED),
    "sharded": (sharded.LINKS, sharded.SIMULATED),
    "links": (sharded.LINKS,),
    "simulated": (sharded.SIMULATED,),
}
"""Where the sharded cells of a choice run."""
OF_DDP = ("quick", "most", "ddp", "all")


def of_ddp(
    which: str, folder: Path, *, loop: bool
) -> tuple[list[replicated.Judged], dict[str, tuple[float, float, bool]]]:
    """DDP's cells, printed as they come, and their bars."""
    print(replicated.HEAD)
    rows: list[replicated.Row] = []
    for index, cell in enumerate(replicated.cells(which)):
        row = replicated.judge(*measure(folder / f"{index:02}", replicated.overrides(*cell)), *cell)
        if loop and row.model == "synthetic":
            row = replace(row, loop=replicated.beside(row, folder / f"{index:02}-loop"))
        rows.append(row)
        print(replicated.line(row), flush=True)
    links = replicated.judged(rows)
    bare = sum(row.bare_held for row in rows) / len(rows)
    print(f"the interval holds bytes / rate in {bare:.0%}; errors against the link in full, by run:")
    print(" ".join(f"{item.link_error:+.2%}{'' if item.held else '*'}" for item in links), "(* not held)")
    return links, replicated.bars(rows, links)


def of_shards(
    cells: Sequence[sharded.Cell], folder: Path
) -> tuple[list[sharded.Row], dict[str, tuple[float, float, bool]]]:
    """The sharded cells, printed as they come, and their bars."""
    print(sharded.HEAD)
    rows: list[sharded.Row] = []
    clean = None
    for cell in cells:  # a cell with a late rank follows the same one without it
        _, point, contended = measure(folder / cell.name, cell.overrides)
        clean = clean if cell.late_ms else point["step_ms"]
        rows.append(sharded.judge(cell, point, contended, clean))
        print(sharded.line(rows[-1]), flush=True)
    return rows, sharded.bars(rows)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--cells", choices=(*OF_DDP, "sharded", "links", "simulated"), default="all")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--keep", type=Path, help="keep the runs here, and use those that are")
    parser.add_argument("--no-loop", action="store_true", help="without the plain loops")
    options = parser.parse_args()
    if options.cells != "simulated" and not harness.has_namespaces():
        return harness.CANNOT
    rows: list[replicated.Judged | sharded.Row] = []
    judged: dict[str, tuple[float, float, bool]] = {}
    with tempfile.TemporaryDirectory(prefix="scaling-truth-") as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        if options.cells in OF_DDP:
            ours, bars = of_ddp(options.cells, folder, loop=not options.no_loop)
            rows, judged = [*rows, *ours], judged | bars
        if options.cells in PLACES:
            theirs, bars = of_shards(sharded.cells(PLACES[options.cells]), folder)
            rows, judged = [*rows, *theirs], judged | bars
    for name, (value, bar, met) in judged.items():
        print(f"{name:<62} {value:7.1%}  bar {bar:.0%}  {'met' if met else 'MISSED'}")
    if options.out:
        options.out.write_text(json.dumps([asdict(item) for item in rows], indent=1) + "\n")
    ok = all(met for _, _, met in judged.values())
    return harness.result("ground_truth", ok=ok, runs=len(rows))


if __name__ == "__main__":
    exit_with(main)
