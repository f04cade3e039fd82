"""A topology as it was asked for, checked against the machine and frozen. InputError says what would be accepted.

The request to Slurm is checked as far as that is possible without asking Slurm.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from scaling.config.schema import Composed, check, freeze
from scaling.errors import InputError
from scaling.hardware.devices import Machine
from scaling.reading import as_number
from scaling.settings.environment import is_secret, is_secret_value
from scaling.settings.topology import (
    BACKEND_OF,
    CPU,
    DEVICE_NAMES,
    GPU,
    MULTI_RANK_NCCL,
    NO_GPUS,
    SIMULATED,
    START_IN_IMAGE_S,
    START_S,
    Cluster,
    Topology,
)
from scaling.units import parse_time_limit_s

_OF_THE_NAME = "partition account qos time constraint reservation gres exclusive requeue"
_OWN = {name: f"cluster.{name}" for name in _OF_THE_NAME.split()} | {
    "gpus-per-node": "cluster.gpus_per_node",
    "signal": "cluster.signal_s",
    "nodes": "topology.hosts and world_sizes",
    "ntasks": "topology.hosts",
    "ntasks-per-node": "topology.hosts",
    "output": "run_dir",
    "array": "`scaling submit -m`, which gives each run a folder of its own; the tasks of an array would share one",
    "wait": "`scaling submit --wait`, which follows the job and prints its report",
    "test-only": "`scaling submit --dry-run`, which prints the script",
    "wrap": "cluster.setup, whose lines run before the harness",
    "clusters": "the login node of that cluster, since Slurm is only asked on this one",
    "gpus-per-task": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
    "gpu-bind": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
}
"""sbatch options that have a key in conf/cluster or would break the job -> what to use instead."""
_OF_SRUN = {
    "nodes": "topology.hosts and world_sizes",
    "ntasks": "topology.hosts",
    "ntasks-per-node": "topology.hosts",
    "nodelist": "cluster.sbatch.nodelist",
    "output": "run_dir",
    "export": "cluster.env",
    "container-image": "cluster.container.image",
    "gpus-per-task": _OWN["gpus-per-task"],
    "gpu-bind": _OWN["gpu-bind"],
}


def to_cluster(config: Composed) -> Cluster:
    """InputError where a value cannot stand in a job's script."""
    if config.time is not None:
        parse_time_limit_s(config.time, "cluster.time")
    if config.gpus_per_node is not None and re.fullmatch(r"(\w+:)?0+", config.gpus_per_node):
        raise InputError(
            f"cluster.gpus_per_node={config.gpus_per_node}: at least 1 is expected; {NO_GPUS} where Slurm knows of none"
        )
    if config.gres is not None and config.gpus_per_node not in (None, NO_GPUS):
        raise InputError(
            f"cluster.gpus_per_node={config.gpus_per_node}: cluster.gres={config.gres} is given too, and Slurm would "
            "get both; leave one of them out"
        )
    for program, options, ours in (("sbatch", config.sbatch, _OWN), ("srun", config.srun, _OF_SRUN)):
        for name, value in options.items():
            if name in ours:
                raise InputError(f"cluster.{program}.{name}: use {ours[name]}")
            if not re.fullmatch(r"[a-z][a-z-]*", name) or "\n" in str(value):
                raise InputError(
                    f"cluster.{program}.{name}: a long option of {program} is expected, such as "
                    f"{'mail-type' if program == 'sbatch' else 'network'}"
                )
        _check_secrets({f"cluster.{program}.{name}": str(value) for name, value in options.items()})
    _check_secrets({f"cluster.setup[{index}]": line for index, line in enumerate(config.setup)})
    usual_s = START_S if config.container.image is None else START_IN_IMAGE_S
    return freeze(
        Cluster,
        config,
        "cluster",
        start_s=usual_s if config.start_s is None else config.start_s,
        env=to_env("cluster.env", config.env),
        sbatch=_options(config.sbatch),
        srun=_options(config.srun),
    )


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    return {str(k): "" if v is None or v is True else str(v) for k, v in given.items()}


_FILLED_IN = re.compile(r"=\s*[\"']?(\$\(|`|\$\w+)")
"""What the shell fills in later, as in `export HF_TOKEN=$(cat file)`: the text itself holds no secret there."""


def _check_secrets(texts: Mapping[str, str]) -> None:
    """InputError for a text that holds a secret; `texts`: by the key that has it."""
    for key, text in texts.items():
        if is_secret_value(_FILLED_IN.sub(" ", text)):
            raise InputError(
                f"{key}: this secret would be written into the run's folder; set it in the environment of `scaling` "
                "instead, which the job inherits, or let cluster.setup read it from a file: export NAME=$(cat FILE)"
            )


def to_env(key: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables as text. All are written into the run's folder: InputError for one that holds a secret."""
    for name, value in config.items():
        if value is None or isinstance(value, bool | dict | list):
            raise InputError(f"{key}.{name}={value}: a number or a text is expected, such as 1 or '\"true\"'")
        if is_secret(str(name)) or is_secret_value(str(value)):
            raise InputError(
                f"{key}.{name}: this secret would be written into the run's folder; set it in the environment of "
                "`scaling` instead, which the workers inherit"
            )
    return {str(name): str(value) for name, value in config.items()}


EMULATED_BIT_S_MIN, EMULATED_BIT_S_MAX = 4_000, 8 * 2**32
"""What the shaper's fields hold (launch/emulated_hosts.py)."""


def to_topology(
    config: Composed, cluster: Composed, machine: Machine, *, elsewhere: bool, shared: bool
) -> Topology:
    """The topology that a config asks for.

    With `elsewhere` the ranks run on other machines than this one, whose devices are then left out of the checks.
    With `shared` NCCL was told that ranks may share a device.
    """
    check(Topology, config, "topology")
    device = (GPU if machine.gpus or elsewhere else CPU) if config.device == "auto" else config.device
    on_cuda = device == GPU  # of these alone the machine was asked
    if on_cuda and not machine.gpus and not elsewhere:
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
        needs = next(DEVICE_NAMES[name] for name, usual in BACKEND_OF.items() if usual == backend)
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
        asked = (cluster.gpus_per_node or "").rpartition(":")[2]  # such as 8 or a100:8
        ranks = as_number(asked) or machine.allocated_gpus
        if ranks is None:
            raise InputError(
                "topology.ranks_per_host=null: a node's GPUs cannot be counted from here; a number is expected, "
                "such as topology.ranks_per_host=8"
            )
    if ranks is None:
        ranks = len(machine.gpus) if on_cuda else machine.cores
    if on_cuda and backend != gloo and ranks > len(machine.gpus) and not (elsewhere or shared):
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


def freeze_topology(config: Composed, **worked_out: Any) -> Topology:
    """A topology whose levels each join more ranks than the one inside them; InputError otherwise."""
    topology = freeze(Topology, config, "topology", **worked_out)
    for inner, outer in itertools.pairwise((0, *(level.ranks for level in topology.levels))):
        if outer <= inner:
            raise InputError(f"topology.levels: {outer} ranks after {inner}; each level joins more ranks")
    return topology


def check_emulated(rate_bit_s: int, asked: str) -> None:
    """InputError for a rate that an emulated link cannot have; `asked` is the override."""
    if not EMULATED_BIT_S_MIN <= rate_bit_s < EMULATED_BIT_S_MAX:
        raise InputError(f"{asked}: an emulated link takes 4 kbit/s to less than 34 Gbit/s")
