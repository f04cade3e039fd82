"""A topology as it was asked for, checked against the machine and frozen. InputError says what would be accepted."""

from __future__ import annotations

import itertools

from scaling.config.cluster import gpus_a_node
from scaling.config.schema import Composed
from scaling.config.values import check, freeze
from scaling.errors import InputError
from scaling.hardware.devices import Machine
from scaling.spec.topology import BACKEND_OF, CPU, DEVICE_NAMES, GPU, MULTI_RANK_NCCL, SIMULATED, Topology

EMULATED_BIT_S_MIN, EMULATED_BIT_S_MAX = 4_000, 8 * 2**32
"""What the shaper's fields hold (launch/emulated_hosts.py)."""

FOUND = GPU
"""The type of device that a machine is asked for (scaling.hardware: NVML)."""


def to_topology(
    config: Composed, cluster: Composed, machine: Machine, *, elsewhere: bool, shared: bool
) -> Topology:
    """The topology that a config asks for.

    With `elsewhere` the ranks run on other machines than this one, whose devices are then left out of the checks.
    With `shared` NCCL was told that ranks may share a device.
    """
    check(Topology, config, "topology")
    device = (FOUND if machine.gpus or elsewhere else CPU) if config.device == "auto" else config.device
    found = device == FOUND  # of these alone the machine was asked
    if found and not machine.gpus and not elsewhere:
        raise InputError(
            "topology.device=cuda: no CUDA device was found here; use topology.device=cpu, or ask what a run "
            f"would take there: scaling predict RUN topology={config.name}"
        )
    if device == SIMULATED and config.kind != "local":
        raise InputError("topology.device=sim: simulated accelerators are of one machine; use topology=local")
    backend, gloo = config.backend, BACKEND_OF[CPU]
    if backend == "auto":
        backend = BACKEND_OF[device] if config.kind != "emulated" else gloo
    if backend not in (gloo, BACKEND_OF[device]):
        needs = next(DEVICE_NAMES[name] for name, own in BACKEND_OF.items() if own == backend)
        raise InputError(
            f"topology.backend={backend}: {backend.upper()} needs {needs}s; use topology.backend={BACKEND_OF[device]}"
        )
    if backend != gloo and config.kind == "emulated":
        raise InputError(
            f"topology.backend={backend}: {backend.upper()} would see one machine behind the emulated hosts and go "
            "around their links; use topology.backend=gloo"
        )
    ranks = config.ranks_per_host
    if ranks is None and elsewhere:
        ranks = gpus_a_node(cluster.gpus_per_node) or machine.allocated_gpus
        if ranks is None:
            raise InputError(
                "topology.ranks_per_host=null: a node's GPUs cannot be counted from here; a number is expected, "
                "such as topology.ranks_per_host=8"
            )
    if ranks is None:
        ranks = len(machine.gpus) if found else machine.cores
    if found and backend != gloo and ranks > len(machine.gpus) and not (elsewhere or shared):
        raise InputError(
            f"topology.ranks_per_host={ranks}: this machine has {len(machine.gpus)} CUDA devices; "
            "use fewer, or topology.backend=gloo, with which ranks can share a device "
            f"(NCCL can from {'.'.join(map(str, MULTI_RANK_NCCL))} on: topology=local_shared_gpu)"
        )
    topology = freeze_topology(config, ranks_per_host=ranks, device=device, backend=backend)
    rate = topology.link.rate_bit_s
    if topology.kind == "emulated" and rate is not None:
        check_emulated(rate, f"topology.link.rate={config.link.rate}")
    return topology


def freeze_topology(config: Composed, *, ranks_per_host: int, device: str, backend: str) -> Topology:
    """A topology whose levels each join more ranks than the one inside them; InputError otherwise."""
    topology = freeze(
        Topology, config, "topology", ranks_per_host=ranks_per_host, device=device, backend=backend
    )
    for inner, outer in itertools.pairwise((0, *(level.ranks for level in topology.levels))):
        if outer <= inner:
            raise InputError(f"topology.levels: {outer} ranks after {inner}; each level joins more ranks")
    return topology


def check_emulated(rate_bit_s: int, asked: str) -> None:
    """InputError for a rate that an emulated link cannot have; `asked` is the override."""
    if not EMULATED_BIT_S_MIN <= rate_bit_s < EMULATED_BIT_S_MAX:
        raise InputError(f"{asked}: an emulated link takes 4 kbit/s to less than 34 Gbit/s")
