"""The emulated launcher: hosts in network namespaces of this machine, joined by links of a set rate."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys

from scaling import resources
from scaling.errors import InputError
from scaling.launchers.launcher import Command, Launcher, LaunchRequest
from scaling.launchers.torchrun import connecting, environment, torchrun
from scaling.settings.plan import Plan

GRACE_S = 5
"""How long the other hosts may take to end by themselves once one of them failed."""

_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


class Emulated(Launcher):
    """One torchrun a host; launch/emulated_hosts.py makes the hosts and their links."""

    def require(self, plan: Plan) -> None:
        """InputError where this system cannot make network namespaces."""
        asked = f"topology={plan.spec.topology.name}"
        if shutil.which(_UNSHARE[0]) is None:
            raise InputError(
                f"{asked}: emulated hosts need the command {_UNSHARE[0]} (util-linux), which is not installed; "
                "install it, or use topology=local"
            )
        tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            limit = (
                os.strerror(errno.ENOSPC) in tried.stderr
            )  # what the kernel answers at a limit of namespaces
            remedy = (
                "raise sysctl user.max_net_namespaces, user.max_user_namespaces" if limit else "allow them"
            )
            raise InputError(
                f"{asked}: emulated hosts need user and network namespaces, which this system refuses "
                f"({tried.stderr.strip()}); {remedy} (docs/troubleshooting.md), or use topology=local"
            )

    def command(self, request: LaunchRequest) -> Command:
        """The script that makes the hosts, and each host's torchrun in `network`."""
        topology, inject = request.spec.topology, request.spec.inject
        shares = topology.shares(request.ranks)
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
                    "command": torchrun(request, ranks, *where),
                    "env": {**connecting(request), **environment(interface="eth0"), **request.spec.env},
                    "log": str(request.launch.agent_log(host).absolute()),
                }
            )
        script = str(resources.folder("launch") / "emulated_hosts.py")
        return Command(
            argv=(*_UNSHARE, sys.executable, script, str(request.launch.fabric.absolute())),
            env={},
            network={"hosts": hosts, "grace_s": GRACE_S, "caller_pid": os.getpid()},
            hosts=len(shares),
            ranks=topology.started(request.ranks),
            blamed=blamed,
        )


def blamed(text: str) -> str | None:
    """The host whose torchrun was killed before any other host ended, from what the script printed; else None."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and ("signal" in said or said.get("status", 0)):
                killed = said.get("status") == 128 + signal.SIGKILL
                return f"torchrun on {said['host']} was ended by SIGKILL" if killed else None
    return None
