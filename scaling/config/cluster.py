"""The request to Slurm, checked as far as that is possible without asking Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scaling.config.schema import Composed
from scaling.config.values import freeze
from scaling.errors import InputError
from scaling.reading import as_number
from scaling.spec.cluster import START_IN_IMAGE_S, START_S, Cluster
from scaling.spec.environment import is_secret, is_secret_value
from scaling.units import parse_time_limit_s

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
    "array": "`scaling submit -m`, which gives each run a folder of its own; the tasks of an array would share one",
    "wait": "`scaling submit --wait`, which follows the job and prints its report",
    "test-only": "`scaling submit --dry-run`, which prints the script",
    "wrap": "cluster.setup, whose lines run before the harness",
    "clusters": "the login node of that cluster, since Slurm is only asked on this one",
    "gpus-per-task": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
    "gpu-bind": "cluster.gpus_per_node: with it each rank sees its own GPU alone, and NVLink goes unused",
}
"""sbatch options that have a key in conf/cluster or would break the job -> what to use instead."""


def to_cluster(config: Composed) -> Cluster:
    """InputError where a value cannot stand in a job's script."""
    if config.time is not None:
        parse_time_limit_s(config.time, "cluster.time")
    if config.gpus_per_node is not None and re.fullmatch(r"(\w+:)?0+", config.gpus_per_node):
        raise InputError(
            f"cluster.gpus_per_node={config.gpus_per_node}: at least 1 is expected; null where there are none"
        )
    for name, value in config.sbatch.items():
        if name in _OWN:
            raise InputError(f"cluster.sbatch.{name}: use {_OWN[name]}")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or "\n" in str(value):
            raise InputError(f"cluster.sbatch.{name}: a long option of sbatch is expected, such as mail-type")
    usual_s = START_S if config.container.image is None else START_IN_IMAGE_S
    return freeze(
        Cluster,
        config,
        "cluster",
        start_s=usual_s if config.start_s is None else config.start_s,
        env=to_env("cluster.env", config.env),
        sbatch={str(k): "" if v is None or v is True else str(v) for k, v in config.sbatch.items()},
    )


def to_env(key: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables as text. All are written into the run's folder: InputError for one that holds a secret."""
    for name, value in config.items():
        if is_secret(str(name)) or is_secret_value(str(value)):
            raise InputError(
                f"{key}.{name}: this secret would be written into the run's folder; set it in the environment of "
                "`scaling` instead, which the workers inherit"
            )
    return {str(name): str(value) for name, value in config.items()}


def gpus_a_node(gpus_per_node: str | None) -> int | None:
    """The number in `cluster.gpus_per_node`, such as 8 or a100:8; None where there is none."""
    count = (gpus_per_node or "").rpartition(":")[2]
    return as_number(count)
