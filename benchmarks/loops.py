"""Loops as people write them, with rank 1 late in each phase: what a Probe's report says of it, and the truth.

    python benchmarks/loops.py [--only WORD ...] [--out cells.jsonl] [--keep FOLDER]

Each loop trains on two Gloo ranks or more (one for `alone`), with rank 1 late by 20 ms in input, forward, backward or
optimizer, or not at all; and once more without a Probe, which must give the same losses to the bit. Cells that
`--out` holds already are not run again, so a run that was cut goes on. Bars: rank and phase right in 95 % of the cells,
the cost within 10 % or 3 ms, nobody named where nobody is late, losses equal. Exit 1 if one is missed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import torch
import torch.distributed as dist
from ending import exit_with
from loop_kinds import BATCH, KINDS, STEPS, WIDTH, Job, Kind

RIGHT, OFF, OFF_MS = 0.95, 0.1, 3.0
LATE = ("none", "input", "forward", "backward", "optimizer")
LIMIT_S = 240


def train(kind: Kind, late: str, probed: Callable[[Any], Any]) -> Job:
    """Train. `probed(model)` gives what is entered around it, with `step()`."""
    job = Job(late)
    model, step = kind.loop(job)
    with probed(model) as probe:
        for number in range(STEPS):
            with probe.step() if probe else contextlib.nullcontext():
                step()
            if kind.evaluates and number % 10 == 9:
                with torch.no_grad():
                    model(torch.zeros(BATCH, WIDTH))
    return job


def worker(name: str, folder: Path) -> None:
    """One rank of all cells of a loop."""
    from scaling import Probe

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kind, equal = KINDS[name], True
    for late in LATE if kind.ranks > 1 else LATE[:1]:
        job = train(kind, late, functools.partial(Probe, run_dir=folder / late))
        if job.rank == 1:
            (folder / f"{late}.ms").write_text(f"{job.slept_ns / STEPS / 1e6:.2f}", encoding="utf-8")
        dist.barrier()
        if late == "none":
            equal = job.losses == train(kind, late, lambda _model: contextlib.nullcontext()).losses
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, equal)
    if dist.get_rank() == 0:
        (folder / "equal").write_text(json.dumps(all(gathered)), encoding="utf-8")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # workers of a loader, and a compiler's, need not be waited for


def cells_of(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Train a loop and tell each cell's answer and truth."""
    from scaling.analysis.run import derive
    from scaling.records.paths import RunFolder

    kind = KINDS[name]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={kind.ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, *start, __file__, "--worker", name, str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            print(done.stderr[-1500:], file=sys.stderr)
    kept = folder / "equal"
    equal = kept.exists() and json.loads(kept.read_text(encoding="utf-8"))
    for late in LATE if kind.ranks > 1 else LATE[:1]:
        cell: dict[str, Any] = {"loop": name, "late": late, "equal": equal}
        cell |= {"cost_ms": 0.0, "said": None, "unclaimed": None}
        with contextlib.suppress(Exception):
            if kind.ranks > 1:
                cell["cost_ms"] = float((folder / f"{late}.ms").read_text(encoding="utf-8"))
            (point,) = derive(RunFolder(folder / late))[0].analysis.points
            cell |= {
                "step_ms": round(point.step_ms.value, 1),
                "unclaimed": point.comm and point.comm.unclaimed_bytes,
            }
            if (straggler := point.straggler) is not None:
                cell["said"] = [straggler.rank, straggler.phase, round(straggler.cost_ms.value, 1)]
        yield cell | {"right": right(cell), "near": near(cell)}


def right(cell: dict[str, Any]) -> bool:
    """Whether the rank and phase are those that are late, or nobody is named where nobody is."""
    if cell["late"] == "none":
        return "step_ms" in cell and cell["said"] is None
    return cell["said"] is not None and cell["said"][:2] == [1, cell["late"]]


def near(cell: dict[str, Any]) -> bool:
    """Whether the cost is that of the sleep."""
    truth = cell["cost_ms"]
    return not cell["said"] or abs(cell["said"][2] - truth) <= max(OFF_MS, OFF * truth)


def table(cells: list[dict[str, Any]]) -> str:
    """A line a loop; `1 forward 20.3` where it is right, with `!` where it is not, `~` where the cost is off."""
    head = f"{'':18}" + "".join(f"{late:>22}" for late in LATE) + "  losses"
    rows = [head]
    for name in KINDS:
        own = {cell["late"]: cell for cell in cells if cell["loop"] == name}
        if own:
            texts = ["" if late not in own else mark(own[late]) for late in LATE]
            equal = all(cell["equal"] for cell in own.values())
            rows.append(
                f"{name:18}" + "".join(f"{text:>22}" for text in texts) + ("  equal" if equal else "  DIFFER")
            )
    return "\n".join(rows)


def mark(cell: dict[str, Any]) -> str:
    text = "nobody" if cell["said"] is None else " ".join(map(str, cell["said"]))
    text = text if "step_ms" in cell else "no answer"
    return f"{'' if cell['right'] else '!'}{'' if cell['near'] else '~'}{text}"


def main() -> int:
    """Run what `--out` lacks, print the table, and hold all cells against the bars."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="loops whose name has one of these words")
    parser.add_argument("--out", type=Path, default=Path("loops.jsonl"), help="file of cells, one a line")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which are deleted otherwise")
    parser.add_argument("--worker", nargs=2, help="a loop and a folder: be one rank of it")
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker[0], Path(asked.worker[1]))
    cells = (
        [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
        if asked.out.exists()
        else []
    )
    names = [name for name in KINDS if not asked.only or any(word in name for word in asked.only)]
    for name in names:
        if any(cell["loop"] == name for cell in cells):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for cell in cells_of(name, (asked.keep or Path(folder)) / name.replace(" ", "_")):
                cells.append(cell)
                print(f"{name}, {cell['late']}: {mark(cell)}", flush=True)
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(cell) + "\n")
    cells = [cell for cell in cells if cell["loop"] in names]
    print(table(cells))
    late = [cell for cell in cells if cell["late"] != "none"]
    named = [cell for cell in cells if cell["late"] == "none" and not cell["right"]]
    share = sum(cell["right"] for cell in late) / max(1, len(late))
    off = sum(not cell["near"] for cell in late)
    differ = sum(not cell["equal"] for cell in cells)
    return harness.result(
        "loops",
        ok=share >= RIGHT and not named and not differ and off <= (1 - RIGHT) * len(late),
        cells=len(cells),
        right=round(share, 3),
        named_in_controls=len(named),
        cost_off=off,
        losses_differ=differ,
    )


if __name__ == "__main__":
    exit_with(main)
