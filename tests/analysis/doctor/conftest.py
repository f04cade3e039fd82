"""A healthy node of four GPUs and four ranks, every rank on its own; tests break one thing each."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from support.results import run_info

from scaling.analysis.doctor.examine import Evidence, examine
from scaling.hardware.nvml import Gpus
from scaling.hardware.telemetry import HostRecord, Sample
from scaling.records.checkup import SCHEMA, Layer, Pair, ParityStep, PrecisionRecord, RankCheck

FACTS = {
    "hostname": "node0",
    "torch": "2.13.0",
    "cuda": "13.0",
    "cudnn": 91002,
    "nccl": "2.29.2",
    "python": "3.11.2",
    "kernel": "6.8",
    "device_name": "Fake H100",
    "compute_capability": "9.0",
    "shared_memory_bytes": 2**35,
    "limit.open_files": 2**20,
    "limit.locked_memory_bytes": None,
    "cgroup_cores": None,
    "flags.threads": 4,
    "flags.cudnn_tf32": False,
    "flags.cudnn_benchmark": True,
    "env.NCCL_DEBUG": "WARN",
    "virtual_machine": False,
}


def layer(name, value=1.0, error=1e-8, digest=None, not_finite=0):
    return Layer(
        name=name,
        digest=digest or f"{name}/{value}",
        samples=(value, 2 * value),
        error=error,
        not_finite=not_finite,
        flushed=0,
    )


def record(precision="fp32", layers=None, digest="same", **changes):
    error = {"fp32": 1e-7, "bf16": 1e-2, "fp16": 1e-3}.get(precision, 0.0)
    step = ParityStep(
        loss=1.0,
        loss_error=error,
        gradient_error=error,
        weight_error=error,
        worst_layer="0.weight",
        digest=digest,
    )
    values = {
        "precision": precision,
        "scale": 1.0,
        "layers": layers or (layer("0", error=error), layer("1", error=error), layer("2", error=error)),
        "gradients": (layer("0.weight", error=error), layer("1.weight", error=error)),
        "steps": (step, step),
        "repeat_parted": "",
        "step_ns": (10_000_000,) * 3,
        "peak_bytes": None,
    }
    return PrecisionRecord(**{**values, **changes})


class Node:
    """What the ranks and the host of one node wrote; change it, then ask."""

    def __init__(self, nvml, ranks: int = 4) -> None:
        self.nvml = nvml
        self.nodes = {"0": "0-7", "1": "8-15"}
        self.nics: tuple[dict, ...] = ()
        self.acs: int | None = 0
        self.checks = [self._check(r, ranks) for r in range(ranks)]

    def _check(self, rank: int, ranks: int) -> RankCheck:
        node = 0 if rank < 2 else 1
        own = {"numa_nodes": str(node), "device_uuid": f"0000-{rank:04d}", "driver": self.nvml.gpus[0].driver}
        peers = [p for p in range(ranks) if p != rank]
        return RankCheck(
            schema=SCHEMA,
            rank=rank,
            host=0,
            stage="end",
            facts={**FACTS, **own},
            pairs=tuple(Pair(peer=p, bytes=2**26, duration_ns=2_000_000, peer_access=True) for p in peers),
            parity=(record("fp64"), record("fp32"), record("bf16")),
        )

    def change(self, *ranks: int, facts=None, **changes) -> None:
        """What these ranks wrote; without one, all of them."""
        for rank in ranks or range(len(self.checks)):
            check = self.checks[rank]
            self.checks[rank] = dataclasses.replace(check, facts={**check.facts, **(facts or {})}, **changes)

    def host(self) -> HostRecord:
        gpus = Gpus(self.nvml)
        facts = gpus.facts()
        for index, gpu in enumerate(facts):
            gpu["numa_node"] = 0 if index < 2 else 1
            gpu["pci_path"] = [f"pci0000:{gpu['numa_node']}0", "0000:01:00.0", f"0000:{index:02x}:00.0"]
        samples = tuple(Sample(time_ns=i * 10**9, gpus=tuple(gpus.sample()), system={}) for i in range(10))
        return HostRecord(
            host=0,
            hostname="node0",
            gpus=tuple(facts),
            nics=self.nics,
            nodes=self.nodes,
            acs_bridges=self.acs,
            samples=samples,
        )

    def examine(self, **options):
        spec = SimpleNamespace(
            seed=0, model=SimpleNamespace(target="m", args={}), topology=SimpleNamespace(nics=())
        )
        plan = SimpleNamespace(ranks=len(self.checks), hosts=1, spec=spec, trials=[SimpleNamespace(batch=32)])
        run = run_info(task="doctor", backend="nccl", device="cuda")
        evidence = Evidence(checks=tuple(self.checks), hosts={0: self.host()})
        return examine(evidence, plan, run, **options)


@pytest.fixture
def node(fake_nvml):
    return Node(fake_nvml())


@pytest.fixture
def a_record():
    return record


@pytest.fixture
def a_layer():
    return layer
