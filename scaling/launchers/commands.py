"""What to execute for one launch: pure text, written to the run folder before it runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from scaling import resources
from scaling.largest import MEASURE
from scaling.plan import Plan
from scaling.spec import Spec
from scaling.store import LaunchFolder, RunFolder

GRACE_S = 5
"""How long the other hosts may take to end by themselves once one of them failed."""

_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its environment on top of the caller's, and the network it needs (emulated only)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    network: dict[str, Any] | None = None


def torchrun(
    spec: Spec,
    ranks: int,
    folder: RunFolder,
    launch: LaunchFolder,
    sizes: list[int],
    *where: str,
    what: str = MEASURE,
) -> list[str]:
    """`launch/torchrun.sh` with `ranks` workers on one host; `where` says how hosts find each other."""
    return [
        str(resources.folder("launch") / "torchrun.sh"),
        spec.topology.backend,
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        *where,
        "-m",
        "scaling.worker",
        str(folder.path.absolute()),
        str(launch.index),
        ",".join(map(str, sizes)),
        *([] if what == MEASURE else [what]),
    ]


def command(
    plan: Plan, folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str = MEASURE
) -> Command:
    """The command of one launch: as many ranks as its largest world size needs.

    `what`: measure, or search or prove the largest batch.
    """
    return (_emulated if plan.spec.launcher == "emulated" else _local)(plan, folder, launch, sizes, what)


def _environment(spec: Spec, interface: str) -> dict[str, str]:
    return {
        "SCALING_PYTHON": sys.executable,
        "PYTHONPATH": resources.import_path(),
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": interface,
        **spec.env,
    }


def _local(plan: Plan, folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str) -> Command:
    where = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
    argv = torchrun(plan.spec, max(sizes), folder, launch, sizes, *where, what=what)
    return Command(argv=tuple(argv), env=_environment(plan.spec, "lo"))


def _emulated(plan: Plan, folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str) -> Command:
    topology, inject = plan.spec.topology, plan.spec.inject
    count = topology.hosts_of(max(sizes))
    hosts = []
    for host in range(count):
        first = host * topology.ranks_per_host
        ranks = min(topology.ranks_per_host, max(sizes) - first)
        where = (
            f"--nnodes={count}",
            f"--node-rank={host}",
            "--master-addr=10.77.0.1",
            "--master-port=29500",
        )
        slowed = inject.link_rate_bit_s is not None and (
            inject.rank is None or topology.host_of(inject.rank) == host
        )
        hosts.append(
            {
                "name": f"host{host}",
                "address": f"10.77.0.{host + 1}",
                "rate_bit_s": inject.link_rate_bit_s if slowed else topology.link.rate_bit_s,
                "command": torchrun(plan.spec, ranks, folder, launch, sizes, *where, what=what),
                "env": _environment(plan.spec, "eth0"),
                "log": str(launch.agent_log(host).absolute()),
            }
        )
    script = str(resources.folder("launch") / "emulated_hosts.py")
    return Command(
        argv=(*_UNSHARE, sys.executable, script, str(launch.fabric.absolute())),
        env={},
        network={"hosts": hosts, "grace_s": GRACE_S, "caller_pid": os.getpid()},
    )
