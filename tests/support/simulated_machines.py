"""What ranks and hosts of a simulated run write beside their records: environments, memory, telemetry.

The files are those of a healthy cluster with 8 GPUs or fewer a host, so a report has no warning because of them.
"""

from __future__ import annotations

import json

from support.fake_nvml import FakeNvml
from support.simulated_cluster import ORIGIN_NS, write_facts

from scaling.hardware.nvml import Gpus
from scaling.records.files import add_line, read_json
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import STATUS_SCHEMA, Status
from scaling.settings.plan import Plan

SECOND_NS = 10**9
GIB = 2**30


def write_machines(folder: RunFolder, plan: Plan) -> None:
    """Add environments, memories-<host>.jsonl and telemetry-<host>.jsonl to launch 0 of a simulated run."""
    launch = folder.launch(0)
    seconds = int(read_json(folder.status, Status, STATUS_SCHEMA).duration_s) + 1
    for rank in range(plan.ranks):
        host = plan.spec.topology.host_of(rank)
        write_facts(launch, host, environment(plan, rank))
        add_line(launch.memories(host), memory(plan, rank))
    for host in range(plan.hosts):
        _write_telemetry(launch, host, plan.spec.topology.ranks_per_host, seconds)


def environment(plan: Plan, rank: int) -> dict[str, object]:
    """What a rank runs on, with the keys that scaling/worker/session/environment.py writes."""
    topology = plan.spec.topology
    host, local = topology.host_of(rank), topology.local_of(rank)
    return {
        "schema": 1,
        "rank": rank,
        "host": host,
        "hostname": f"sim-{host}",
        "python": "3.11.2",
        "torch": "2.13.0",
        "kernel": "6.8.0",
        "machine": "x86_64",
        "cpu": "Imaginary C1",
        "cores": 96,
        "threads": 12,
        "device": topology.device,
        "backend": topology.backend,
        "driver": "570.86.15",
        "cudnn": 91002,
        "cuda": "12.8",
        "nccl": "2.27.5",
        "device_name": "Fake H100",
        "device_memory_bytes": 80 * GIB,
        "compute_capability": "9.0",
        "device_uuid": f"0000-{local:04d}",
        "device_pci": f"0000:{0x10 + local:02x}:00.0",
        "parameters": 2**24,
        "parameter_tensors": 8,
        "parameter_bytes": 2**26,
        "buffers_bytes": 0,
        "environment": {
            "CUDA_VISIBLE_DEVICES": str(local),
            "NCCL_DEBUG": "WARN",
            "OMP_NUM_THREADS": "12",
            "SLURM_JOB_ID": "1",
            "SLURM_PROCID": str(rank),
            "TORCHELASTIC_RUN_ID": "simulated",
        },
    }


def memory(plan: Plan, rank: int) -> dict[str, object]:
    """A line of memories-<host>.jsonl, with the keys that a worker writes when it ends."""
    held = {"peak_bytes": 8 * GIB, "communicators_bytes": GIB // 2}
    sizes = {str(t.world_size): held for t in plan.trials if rank < t.world_size}
    return {
        "schema": 1,
        "rank": rank,
        "peak_bytes": 8 * GIB,
        "world_sizes": sizes,
        "device_clock_bound_ns": 2000,
    }


def _write_telemetry(launch: LaunchFolder, host: int, count: int, seconds: int) -> None:
    """A sample a second of a host with `count` GPUs; its clock is the simulated ranks' own."""
    gpus = Gpus(FakeNvml(count))
    head = {"t": "head", "schema": 1, "host": host, "hostname": f"sim-{host}", "gpus": gpus.facts()}
    lines = [json.dumps(head | {"nics": [], "nodes": {"0": "0-95"}, "acs_bridges": None})]
    devices = gpus.sample()
    for second in range(seconds):
        system = {"cpu_busy_ns": 12 * second * SECOND_NS, "cpu_stolen_ns": 0, "cpu_mhz": 3000}
        sample = {"t": "sample", "time_ns": ORIGIN_NS + second * SECOND_NS, "gpus": devices, "system": system}
        lines.append(json.dumps(sample, separators=(",", ":")))
    launch.telemetry(host).write_text("\n".join(lines) + "\n")
