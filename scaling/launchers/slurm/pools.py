"""Give each allocation of one run nodes of its own: a partition's nodes are dealt out before the jobs are submitted.

Each job excludes the other jobs' nodes, so that they need not wait for each other, and a job that starts again stays
on its own. Which nodes of its share a job gets is Slurm's choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm.allocation import gets_jobs, hostnames
from scaling.launchers.slurm.ask import run
from scaling.spec.request import Request
from scaling.spec.run import Spec
from scaling.units import hostlist

KEY = "cluster.allocations"
_EXCLUDE = "cluster.sbatch.exclude"


def excluded(spec: Spec) -> list[str]:
    """`--exclude` of each allocation of a run; one empty text for a run that asks for one allocation.

    InputError where the partition has too few nodes that get jobs.
    """
    cluster = spec.cluster
    if cluster.allocations == 1:
        return [""]
    if "nodelist" in cluster.sbatch:
        raise InputError(
            f"{KEY}={cluster.allocations}: chooses nodes itself; leave cluster.sbatch.nodelist out, or name nodes in "
            f"{_EXCLUDE} that are not to be used"
        )
    theirs = hostnames(cluster.sbatch.get("exclude", ""))
    where = [] if cluster.partition is None else [f"--partition={cluster.partition}"]
    nodes = nodes_of(_listed(*where), default=cluster.partition is None)
    hosts = max(spec.topology.hosts_of(n) for n in spec.world_sizes)
    usable = [name for name, up in nodes.items() if up and name not in theirs]
    return [
        hostlist(dict.fromkeys([*(name for name in nodes if name not in own), *theirs]))
        for own in shares(usable, cluster.allocations, hosts, cluster.partition)
    ]


def one_allocation(request: Request) -> Request:
    """What is asked of one job of several."""
    cluster = replace(request.spec.cluster, allocations=1)
    return replace(request, spec=replace(request.spec, cluster=cluster))


def _listed(*where: str) -> str:
    done = run("sinfo", "--noheader", "--Node", *where, "--format=%N %t %P")
    if done.returncode:
        raise ScalingError(f"sinfo: {done.stderr.strip()}")
    return done.stdout


def nodes_of(sinfo: str, *, default: bool) -> dict[str, bool]:
    """Nodes, and whether they get new jobs, from `sinfo --noheader --Node --format=%N %t %P`.

    `default`: only those of the default partition.
    """
    lines = [line.split() for line in sinfo.splitlines() if len(line.split()) == 3]
    return {
        name: gets_jobs(state) for name, state, partition in lines if not default or partition.endswith("*")
    }


def shares(nodes: Sequence[str], allocations: int, hosts: int, partition: str | None) -> list[list[str]]:
    """Disjoint shares of the nodes, one for each allocation, neighbours together.

    InputError where they are fewer than `hosts` each.
    """
    if len(nodes) < allocations * hosts:
        where = "the default partition" if partition is None else f"partition {partition}"
        most = len(nodes) // hosts
        would = f"at most {most} of them fit" if most else "`sinfo` lists the partitions and their nodes"
        raise InputError(
            f"{KEY}={allocations}: {allocations} x {hosts} nodes are needed, and {where} has {len(nodes)} that get "
            f"jobs; {would} (cluster.partition, or the topology)"
        )
    ends = [len(nodes) * k // allocations for k in range(allocations + 1)]
    return [list(nodes[first:last]) for first, last in itertools.pairwise(ends)]
