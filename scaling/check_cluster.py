"""What a Slurm job asks for, checked as far as it can be without asking Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scaling.check_value import at_least, one_of
from scaling.cluster import NUMA_BINDINGS, RUNTIMES, START_IN_IMAGE_S, START_S, Cluster, Container
from scaling.errors import InputError
from scaling.schema import ClusterConfig
from scaling.secrets import is_secret
from scaling.units import parse_time_limit_s

_ONE_LINE = ("partition", "account", "qos", "constraint", "reservation", "gres", "gpus_per_node", "interface")
_OWN = {
    "partition": "cluster.partition",
    "account": "cluster.account",
    "qos": "cluster.qos",
    "time": "cluster.time",
    "constraint": "cluster.constraint",
    "reservation": "cluster.reservation",
    "gres": "cluster.gres",
    "gpus-per-node": "cluster.gpus_per_node",
    "exclusive": "cluster.exclusive",
    "requeue": "cluster.requeue",
    "signal": "cluster.signal_s",
    "nodes": "topology.hosts and world_sizes",
    "ntasks": "topology.hosts",
    "ntasks-per-node": "topology.hosts",
    "output": "run_dir",
    "clusters": "the login node of that cluster: nothing here asks another one's controller",
    "gpus-per-task": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
    "gpu-bind": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
}
"""Options of sbatch that have a key of their own, or would break the job -> what to use."""


def to_cluster(config: ClusterConfig) -> Cluster:
    """InputError where a value could not stand in a job's script."""
    for key in _ONE_LINE:
        value = getattr(config, key)
        if value is not None and not re.fullmatch(r"[^\s'\"\\;`$]+", value):
            raise InputError(f"cluster.{key}={value}: one word is expected, without spaces and quotes")
    if config.time is not None:
        parse_time_limit_s(config.time, "cluster.time")
    at_least("cluster.signal_s", config.signal_s, 0)
    if config.start_s is not None:
        at_least("cluster.start_s", config.start_s, 1)
    if config.cpus_per_rank is not None:
        at_least("cluster.cpus_per_rank", config.cpus_per_rank, 1)
    if config.gpus_per_node is not None and re.fullmatch(r"(\w+:)?0+", config.gpus_per_node):
        raise InputError(
            f"cluster.gpus_per_node={config.gpus_per_node}: at least 1 is expected; null where there are none"
        )
    for name, value in config.sbatch.items():
        if name in _OWN:
            raise InputError(f"cluster.sbatch.{name}: use {_OWN[name]}")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or "\n" in str(value):
            raise InputError(f"cluster.sbatch.{name}: a long option of sbatch is expected, such as mail-type")
    container = config.container
    one_of("cluster.numa_binding", config.numa_binding, NUMA_BINDINGS)
    one_of("cluster.container.runtime", container.runtime, RUNTIMES)
    for mount in container.mounts:
        if not re.fullmatch(r"/[^\s:,]*:/[^\s:,]*(:\w+)?", mount):
            raise InputError(f"cluster.container.mounts={mount}: /SOURCE:/TARGET is expected")
    apart = ("env", "setup", "sbatch", "container", "start_s")
    return Cluster(
        **{k: v for k, v in vars(config).items() if k not in apart},
        start_s=config.start_s or (START_S if container.image is None else START_IN_IMAGE_S),
        env=to_env("cluster.env", config.env),
        setup=tuple(config.setup),
        sbatch={str(k): "" if v is None or v is True else str(v) for k, v in config.sbatch.items()},
        container=Container(**{**vars(container), "mounts": tuple(container.mounts)}),
    )


def to_env(key: str, config: Mapping[str, Any]) -> dict[str, str]:
    """InputError for a variable that should not be written down, as all of these are."""
    for name in config:
        if is_secret(str(name)):
            raise InputError(
                f"{key}.{name}: it would be written into the run's folder; set it in the environment of `scaling`, "
                "which the workers get as it is"
            )
    return {str(name): str(value) for name, value in config.items()}


def gpus_a_node(config: ClusterConfig) -> int | None:
    """The number in `cluster.gpus_per_node`, such as 8 or a100:8; None where there is none."""
    count = (config.gpus_per_node or "").rpartition(":")[2]
    return int(count) if count.isdigit() else None
