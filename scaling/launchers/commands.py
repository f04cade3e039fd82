"""What to execute for one launch: pure text, written to the run folder before it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from scaling import resources
from scaling.errors import InputError
from scaling.largest import MEASURE
from scaling.launchers import slurm
from scaling.launchers.torchrun import Command, nccl_log, torchrun
from scaling.plan import Plan
from scaling.spec import Spec
from scaling.store import LaunchFolder, RunFolder

GRACE_S = 5
"""How long the other hosts may take to end by themselves once one of them failed."""

_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


def command(
    plan: Plan, folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str = MEASURE
) -> Command:
    """The command of one launch: as many ranks as its largest world size needs.

    `what`: measure, or search or prove the largest batch.
    """
    if plan.spec.launcher == "slurm":
        return slurm.command(plan, folder, launch, sizes, slurm.allocation(plan), what)
    return (_emulated if plan.spec.launcher == "emulated" else _local)(plan, folder, launch, sizes, what)


def require(plan: Plan) -> None:
    """InputError when a plan cannot run where this is run."""
    slurm.require_allocation(plan)
    if plan.spec.launcher != "emulated":
        return
    asked = f"topology={plan.spec.topology.name}"
    if shutil.which(_UNSHARE[0]) is None:
        raise InputError(
            f"{asked}: {_UNSHARE[0]} (util-linux) is not found, which makes its hosts; "
            "install it, or use topology=local"
        )
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise InputError(
            f"{asked}: its hosts are user namespaces, which this system refuses ({tried.stderr.strip()}); "
            "allow them (docs/troubleshooting.md), or use topology=local"
        )


def fitting(plan: Plan, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
    """World sizes of `sizes` that a launch has room for now, and what is missing for the others."""
    return slurm.fitting(plan, sizes) if plan.spec.launcher == "slurm" else (sizes, None)


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
    env = {**nccl_log(plan.spec, launch), **_environment(plan.spec, "lo")}
    return Command(argv=tuple(argv), env=env)


def _emulated(plan: Plan, folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str) -> Command:
    topology, inject = plan.spec.topology, plan.spec.inject
    shares = topology.shares(max(sizes))
    hosts = []
    for host, ranks in enumerate(shares):
        where = (
            f"--nnodes={len(shares)}",
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
        ranks=topology.started(max(sizes)),
    )
