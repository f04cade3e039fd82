"""A topology as it was asked for, checked against the machine and frozen. InputError says what would be accepted."""

from __future__ import annotations

import itertools
from typing import Any

from scaling.check_cluster import gpus_a_node
from scaling.check_value import at_least, one_of
from scaling.errors import InputError
from scaling.fabric import MULTI_RANK, PLACEMENTS, Level, Link, Nic, Topology
from scaling.machine import Machine
from scaling.schema import ClusterConfig, LevelConfig, LinkConfig, TopologyConfig
from scaling.units import parse_rate_bit_s

EMULATED_BIT_S_MIN, EMULATED_BIT_S_MAX = 4_000, 8 * 2**32
"""What the shaper's fields hold (launch/emulated_hosts.py)."""


def to_topology(
    config: TopologyConfig, cluster: ClusterConfig, machine: Machine, *, elsewhere: bool, shared: bool
) -> Topology:
    """A topology that this machine can run; where it is `elsewhere`, one that this machine says nothing of.

    `shared`: NCCL was told that ranks may share a device.
    """
    one_of("topology.kind", config.kind, ("local", "emulated", "slurm"))
    one_of("topology.device", config.device, ("auto", "cpu", "cuda"))
    one_of("topology.backend", config.backend, ("auto", "gloo", "nccl"))
    one_of("topology.placement", config.placement, PLACEMENTS)
    device = ("cuda" if machine.gpus or elsewhere else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not machine.gpus and not elsewhere:
        raise InputError(
            "topology.device=cuda: no CUDA device was found here; use topology.device=cpu, or ask what a run "
            f"would take there: scaling predict RUN topology={config.name}"
        )
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device == "cuda" and config.kind != "emulated" else "gloo"
    if backend == "nccl" and device == "cpu":
        raise InputError("topology.backend=nccl: NCCL needs CUDA devices; use topology.backend=gloo")
    if backend == "nccl" and config.kind == "emulated":
        raise InputError(
            "topology.backend=nccl: NCCL would see one machine behind the emulated hosts and go around their links; "
            "use topology.backend=gloo"
        )
    ranks = config.ranks_per_host
    if ranks is None and elsewhere:
        ranks = gpus_a_node(cluster) or machine.allocated_gpus
        if ranks is None:
            raise InputError(
                "topology.ranks_per_host=null: a node's GPUs cannot be counted from here; a number is expected, "
                "such as topology.ranks_per_host=8"
            )
    if ranks is None:
        ranks = len(machine.gpus) if device == "cuda" else machine.cores
    at_least("topology.hosts", config.hosts, 1)
    at_least("topology.ranks_per_host", ranks, 1)
    if device == "cuda" and backend == "nccl" and ranks > len(machine.gpus) and not (elsewhere or shared):
        raise InputError(
            f"topology.ranks_per_host={ranks}: this machine has {len(machine.gpus)} CUDA devices; "
            "use fewer, or topology.backend=gloo, with which ranks can share a device "
            f"(NCCL can from 2.30 on: +env.{MULTI_RANK}=1)"
        )
    link = to_link(config.link, "topology.link")
    if config.kind == "emulated" and link.rate_bit_s is not None:
        check_emulated(link.rate_bit_s, f"topology.link.rate={config.link.rate}")
    return Topology(
        name=config.name,
        kind=config.kind,
        hosts=config.hosts,
        ranks_per_host=ranks,
        device=device,
        backend=backend,
        link=link,
        levels=to_levels(config.levels),
        islands=tuple(tuple(part) for part in config.islands),
        numa=tuple(tuple(part) for part in config.numa),
        nics=tuple(
            Nic(
                name=nic.name,
                near=tuple(nic.near),
                link_class=nic.link_class,
                rate_bit_s=None
                if nic.rate is None
                else parse_rate_bit_s(nic.rate, f"topology.nics.{i}.rate"),
            )
            for i, nic in enumerate(config.nics)
        ),
        placement=config.placement,
        note=config.note,
    )


def check_emulated(rate_bit_s: int, asked: str) -> None:
    """InputError for a rate that no emulated link can have; `asked`: the override."""
    if not EMULATED_BIT_S_MIN <= rate_bit_s < EMULATED_BIT_S_MAX:
        raise InputError(f"{asked}: an emulated link takes 4 kbit/s to less than 34 Gbit/s")


def to_link(config: LinkConfig, where: str) -> Link:
    """A link's rate, and what is known of it."""
    return Link(**_link(config, where))


def to_levels(configs: list[LevelConfig]) -> tuple[Level, ...]:
    """Levels within a host, from the innermost out; each joins more ranks than the one before."""
    levels = tuple(
        Level(name=c.name, ranks=c.ranks, link_class=c.link_class, **_link(c, f"topology.levels.{i}"))
        for i, c in enumerate(configs)
    )
    for inner, outer in itertools.pairwise((0, *(level.ranks for level in levels))):
        if outer <= inner:
            raise InputError(f"topology.levels: {outer} ranks after {inner}; each level joins more ranks")
    return levels


def _link(config: LinkConfig, where: str) -> dict[str, Any]:
    rate = None if config.rate is None else parse_rate_bit_s(config.rate, f"{where}.rate")
    if config.share is not None and not 0 < config.share <= 1:
        raise InputError(f"{where}.share={config.share}: a fraction of the rate is expected, such as 0.8")
    if config.latency_us is not None:
        at_least(f"{where}.latency_us", config.latency_us, 0)
    return {
        "rate_bit_s": rate,
        "share": config.share,
        "latency_us": config.latency_us,
        "source": config.source,
    }
