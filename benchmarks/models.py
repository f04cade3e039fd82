"""Known models on a GPU: ResNet-50 and RT-DETR over batch and precision, and the largest batch up to the card's memory.

Prints tables for docs/gpu-validation.md, and checks what can be checked without another
tool: the largest batch ran in fresh processes, memory grows with the batch, a batch beyond the
largest does not fit. Exits 77 where there is no GPU or no transformers, 1 when a check fails.

    python benchmarks/models.py [RUN_DIR]
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from ending import exit_with, run
from harness import CANNOT, SCALING, last_line, read_analysis

from scaling.hardware.devices import find_machine

RUN_S = 1800
RUNS = {
    "resnet50-train": ("model=resnet50", "batch=[16,32,64,128,256]", "vary.precision=[fp32,tf32,bf16]"),
    "resnet50-inference": ("model=resnet50", "task=inference", "batch=[1,8,32,128]", "vary.precision=[fp32,bf16,fp16]"),
    "rtdetr-inference": ("model=rtdetr", "task=inference", "batch=[1,8,32]", "vary.precision=[fp32,bf16,fp16]"),
    "rtdetr-compiled": ("model=rtdetr", "task=inference", "batch=[1,8]", "vary.compile=[false,true]"),
    "resnet50-max": ("model=resnet50", "batch=max", "vary.precision=[fp32,bf16]"),
    "rtdetr-max": ("model=rtdetr", "batch=max", "precision=bf16"),
    "gpt2-table": ("model=gpt2", "batch=[16]", "precision=bf16", "vary.accumulation_steps=[1,2,4]",
                   "vary.checkpointing=[false,true]"),
}  # fmt: skip


def main() -> int:
    if len(sys.argv) > 1:
        return measure(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as scratch:
        return measure(Path(scratch))


def measure(folder: Path) -> int:
    if not find_machine().gpus or importlib.util.find_spec("transformers") is None:
        print("no CUDA device or no transformers here")
        return CANNOT
    failed = []
    for name, overrides in RUNS.items():
        print(f"== {name}: {' '.join(overrides)}", flush=True)
        arguments = [*overrides, "topology=local", "tracking=disabled", f"run_dir={folder / name}"]
        done = run([*SCALING, "run", *arguments], timeout_s=RUN_S)
        print(done.stdout, end="", flush=True)
        if done.returncode not in (0, 3):
            failed.append(f"{name}: exit status {done.returncode}: {last_line(done.stderr)}")
            continue
        analysis = read_analysis(folder / name)
        failed += [f"{name}: {what}" for what in (*missing(analysis, overrides), *problems(analysis))]
    print("\n".join(failed) or "all checks hold")
    return int(bool(failed))


def missing(analysis: dict, overrides: tuple[str, ...]) -> list[str]:
    """What is missing: a largest batch for each precision, and a row that was measured."""
    lacking = []
    varied = [o.count(",") + 1 for o in overrides if o.startswith("vary.precision=")]
    precisions = varied[0] if varied else 1
    if "batch=max" in overrides and len(analysis["largest_batch"]) != precisions:
        lacking.append(f"{len(analysis['largest_batch'])} largest batches, {precisions} are expected")
    rows = [*analysis["training"], *analysis["inference"]]
    odd = {row["status"] for row in rows} - {"done", "oom"}
    if odd or not any(row["status"] == "done" for row in rows):
        lacking.append(f"{len(rows)} rows, of which some are {', '.join(sorted(odd)) or 'all out of memory'}")
    return lacking


def problems(analysis: dict) -> list[str]:
    """Figures of a run that cannot be right."""
    wrong = []
    for largest in analysis["largest_batch"]:
        at = f"{largest['precision']}: found {largest['found']}, proved {largest['proved']}"
        if not largest["proved"] or largest["proved"] < 0.9 * largest["found"]:
            wrong.append(at)
        if not any(t["status"] != "fits" for t in largest["tries"]):
            wrong.append(f"{at}, and nothing was too large")
    rows = [r for r in (*analysis["training"], *analysis["inference"]) if r["peak_bytes"]]
    settings = {}
    for row in rows:
        names = ("world_size", "precision", "autocast", "compile", "checkpointing", "accumulation_steps")
        settings.setdefault(tuple(row.get(name) for name in names), []).append(row)
    for setting, group in settings.items():
        ordered = sorted(group, key=lambda row: row["batch"])
        if any(a["peak_bytes"] > b["peak_bytes"] for a, b in pairwise(ordered)):
            wrong.append(f"{setting}: memory falls as the batch grows")
    return wrong


if __name__ == "__main__":
    exit_with(main)
