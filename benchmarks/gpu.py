"""Check the CUDA and NCCL path on one real GPU, in a few minutes.

    python benchmarks/gpu.py [--out FILE] [--rounds N] [--only SECTION]
    python benchmarks/gpu.py --device cpu      # the same code on a CPU with Gloo: every row, without bars
    python benchmarks/gpu.py --device sim      # on the simulated accelerator: what it can show is judged, the rest said

runs       `scaling run`: NCCL at world size 1; 1, 2 and 4 Gloo ranks that share the GPU (host-staged).
           Bar: every trial is done.
ranks      DDP over NCCL alone: gradients with the probe's hook and without, stamps of every bucket.
           Bar: equal gradients, stamps in order.
phases     Input, forward, backward and optimizer of a ResNet-50 step in bf16, by events and by torch.profiler's
           device times (a simulated device's own record) at the same places of the same steps. Bar: 2 %, or 10 us
           where that is more.
probe      Phase stamps over the plain step of a batch that the device is slower with than the host, in paired blocks in
           random order with an A/A control. Bar: 0.5 % of the step, and A/A within that. Beside it, without a bar: the
           stamps of every bucket, and the host's time for one stamp.
anchors    The clock's bound against the host's; events over a second against when the host saw them.
           Bar: 200 us, and no event earlier than the bound allows.
telemetry  Each field, sampled before and after nvidia-smi reads it, under load. Bar: equal, or within the slack that
           is shown.

Exit 1 where a bar is missed or a section fails, 77 with the reason where there is no GPU. Put the figures into
docs/gpu-validation.md, with date, device and versions.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ending import exit_with, run
from gpu_parts import rows
from gpu_parts.rows import Row
from harness import CANNOT, SCALING, last_line, read_analysis

RUN_S = 300
BUDGET_S = 14
UNSHOWN = {
    "probe": "on the virtual clock the probe's own work takes no time (benchmarks/overhead.py has it on the CPU)",
    "telemetry": "a simulated device has no sensors",
}
"""Sections that a simulated accelerator cannot show, and why."""
COMMON = ("topology=local", "model=mlp", "measure=quick", f"measure.budget_s={BUDGET_S}", "tracking=disabled")
STAGED = "host-staged"
"""The label of gradients that go through host memory (scaling/analysis/doctor/preflight.py)."""


def missing() -> str | None:
    """The reason why this cannot run here; None if it can."""
    from scaling.hardware.devices import find_machine

    if not find_machine().gpus:
        return "no CUDA device here"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} does not see the CUDA device"
    return None if torch.distributed.is_nccl_available() else f"torch {torch.__version__} has no NCCL"


def conditions(kind: str) -> dict[str, Any]:
    """The machine and the versions that were measured."""
    import torch

    from scaling.worker.accelerator.devices import open_kind
    from scaling.worker.session.environment import cpu_name, driver_version

    facts = open_kind(kind).facts()
    named = ("device_name", "device_memory_bytes", "compute_capability", "cuda", "nccl")
    return {
        "when": f"{dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d %H:%M} UTC",
        **{name: facts[name] for name in named},
        "driver": driver_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
    }


def scaling_run(name: str, wanted: list[int], kind: str, backend: str, folder: Path) -> list[Row]:
    """The rows of one `scaling run`."""
    ranks = max(wanted)
    overrides = [
        *COMMON,
        f"topology.device={kind}",
        f"topology.backend={backend}",
        f"run_dir={folder / name}",
    ]
    overrides += [
        f"topology.ranks_per_host={ranks}",
        f"world_sizes={json.dumps(wanted, separators=(',', ':'))}",
    ]
    done = run([*SCALING, "run", *overrides], timeout_s=RUN_S)
    try:
        analysis = read_analysis(folder / name)
    except OSError:
        measured = f"status {done.returncode}: {last_line(done.stderr)[:200]}"
        return [Row(section="runs", what=name, measured=measured, met=False)]
    points = {point["world_size"]: point for point in analysis["points"]}
    judged = rows.run(name, done.returncode, points, wanted)
    if backend == "gloo" and kind == "cuda":
        labelled = any(STAGED in warning for warning in analysis["quality"]["warnings"])
        text = f"{'labelled' if labelled else 'NOT labelled'} {STAGED}, {ranks} ranks on one device"
        judged.append(Row(section="runs", what=f"{name}, label", measured=text, bar=STAGED, met=labelled))
    if backend == "nccl":
        log = analysis["fabric"]["nccl"] or {}
        text = f"version {log.get('version')}"
        judged.append(
            Row(section="runs", what=f"{name}, NCCL's own log", measured=text, bar="read", met=bool(log))
        )
    bound = analysis["quality"]["device_clock_bound_us"]
    none = (
        "none: host and device have the simulation's clock"
        if kind == "sim"
        else "none: stamps are the host's own"
    )
    text = none if bound is None else f"{bound:.1f} us"
    return [*judged, Row(section="runs", what=f"{name}, device clock", measured=text, value=bound)]


def runs(kind: str, folder: Path) -> list[Row]:
    """Runs with NCCL, and with Gloo ranks that share the device; on a CPU both use Gloo, on simulated devices none."""
    if kind == "sim":
        return [
            *scaling_run("simccl-alone", [1], kind, "simccl", folder),
            *scaling_run("simccl", [1, 2, 4], kind, "simccl", folder),
            unshown("runs", "gloo-shared", "each simulated rank has a device of its own"),
        ]
    backend = "nccl" if kind == "cuda" else "gloo"
    return [
        *scaling_run(f"{backend}-alone", [1], kind, backend, folder),
        *scaling_run("gloo-shared", [1, 2, 4], kind, "gloo", folder),
    ]


def unshown(section: str, what: str, why: str) -> Row:
    """A row that the simulated accelerator cannot fill."""
    return Row(section=section, what=what, measured=f"not on a simulated accelerator: {why}")


def in_process(kind: str, folder: Path, rounds: int) -> dict[str, Callable[[], list[Row]]]:
    """The sections that run in this process; imports torch."""
    from gpu_parts import loops, phase_steps, smi

    from scaling.analysis.doctor.devices import index_of
    from scaling.hardware.nvml import Gpus, open_nvml

    solo = loops.OneRank(kind)

    def over_group(part: Callable[[Any], list[Row]], name: str) -> list[Row]:
        scratch = folder / name
        scratch.mkdir()
        with solo.group(scratch) as group:
            return part(group)

    def telemetry() -> list[Row]:
        nvml = open_nvml()
        if nvml is None:
            why = "NVML does not answer here, so there is nothing beside nvidia-smi"
            return [Row(section="telemetry", what="nvidia-smi", measured=why, met=False)]
        gpus = Gpus(nvml)
        index = index_of(gpus.facts(), solo.device.facts())
        if index is None:
            return [
                Row(section="telemetry", what="nvidia-smi", measured="NVML has no such device", met=False)
            ]
        with loops.busy(solo.device):
            return smi.beside(gpus, index=index)

    return {
        "ranks": lambda: over_group(lambda group: loops.own_backend(solo, group), "ranks"),
        "phases": lambda: phase_steps.stamped_phases(solo, folder),
        "probe": lambda: over_group(lambda group: loops.probe_overhead(solo, group, rounds), "probe"),
        "anchors": lambda: loops.anchored(solo.device),
        "telemetry": telemetry,
    }


SECTIONS = ("runs", "ranks", "phases", "probe", "anchors", "telemetry")


def measured(kind: str, only: list[str], rounds: int, folder: Path) -> Iterator[Row]:
    """The rows of every section, one after the other. A section that fails gives a missed row; the others go on."""
    parts: dict[str, Callable[[], list[Row]]] = {"runs": lambda: runs(kind, folder)}
    for name in only:
        if kind == "sim" and name in UNSHOWN:
            yield unshown(name, "all of it", UNSHOWN[name])
            continue
        try:
            if name not in parts:
                parts |= in_process(kind, folder, rounds)
            yield from parts[name]()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is this section's result
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            yield Row(section=name, what="failed", measured=why, met=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu", "sim"), default="cuda")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be given several times")
    parser.add_argument("--rounds", type=int, default=24, help="of the probe's blocks")
    parser.add_argument("--out", type=Path, help="the same as JSON")
    options = parser.parse_args()
    kind = options.device
    if kind == "cuda" and (reason := missing()):
        print(reason)
        return CANNOT
    with tempfile.TemporaryDirectory(prefix="scaling-gpu-") as scratch:
        chosen = [name for name in SECTIONS if name in (options.only or SECTIONS)]
        measured_rows = list(measured(kind, chosen, options.rounds, Path(scratch)))
    failed = any(row.what == "failed" for row in measured_rows)
    if kind == "cpu":
        measured_rows = rows.unjudged(measured_rows)
    where = conditions(kind)
    print("# " + ", ".join(f"{name} {value}" for name, value in where.items() if value is not None))
    if kind == "cpu":
        print(
            "# a dry run on a CPU with Gloo and host stamps: it says nothing of a GPU, and no bar is judged"
        )
    if kind == "sim":
        print("# on a simulated accelerator, whose times are a model's: it says nothing of a GPU's own times")
    print(rows.table(measured_rows))
    ok = not failed and (kind == "cpu" or rows.passed(measured_rows))
    document = {"benchmark": "gpu", "device": kind, "judged": kind != "cpu", "ok": ok}
    if options.out:
        whole = {**document, "conditions": where, "rows": [asdict(row) for row in measured_rows]}
        options.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))
    return 0 if ok else 1


if __name__ == "__main__":
    exit_with(main)
