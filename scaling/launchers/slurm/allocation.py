"""The Slurm job that this program runs in: its nodes, those that are up, and how it is ended."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import signal
import socket
import struct
from dataclasses import dataclass

from scaling.errors import ScalingError
from scaling.launchers.slurm.queue import answer, parse_scontrol
from scaling.settings.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAllocation:
    """The nodes that a launch can have now, in Slurm's order, and the first one's address."""

    job: str
    nodes: tuple[str, ...]
    address: str
    lost: tuple[str, ...] = ()
    """Nodes of the job that failed, are down or do not answer."""


def allocated() -> bool:
    """Whether this program runs inside a Slurm job."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ


def allocation(plan: Plan) -> JobAllocation:
    """The nodes of this job that can be used now; stand-ins outside of a job. ScalingError when none can."""
    if not allocated():
        return JobAllocation(job="0", nodes=tuple(f"NODE{k}" for k in range(plan.hosts)), address="NODE0")
    job = os.environ["SLURM_JOB_ID"]
    names = hostnames(os.environ["SLURM_JOB_NODELIST"])
    # With --no-kill, Slurm removes a failed node from the job, and it stays out when it is up again.
    kept = hostnames(answer("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
    dead = down(answer("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %t"))
    nodes = tuple(name for name in names if name in kept and name not in dead)
    if not nodes:
        raise ScalingError(f"no node of job {job} is up: {', '.join(names)}")
    return JobAllocation(
        job=job,
        nodes=nodes,
        address=_address(nodes[0], plan.spec.cluster.interface),
        lost=tuple(name for name in names if name not in nodes),
    )


def down(sinfo: str) -> set[str]:
    """Nodes that can run no step, from `sinfo --noheader --Node --format=%N %t`.

    A star marks a node that does not answer. A draining node still runs the job that it has.
    """
    states = (line.split() for line in sinfo.splitlines() if len(line.split()) == 2)
    return {name for name, state in states if _is_down(state)}


def gets_jobs(state: str) -> bool:
    """Whether a node in this state (sinfo's %t) gets new jobs; it may be busy."""
    return not _is_down(state) and not state.startswith(("drain", "drng", "maint"))


def _is_down(state: str) -> bool:
    return state.endswith("*") or state.startswith(("down", "fail", "unk"))


def hostnames(expression: str) -> list[str]:
    """`pcie[1-2]` -> pcie1, pcie2."""
    return answer("scontrol", "show", "hostnames", expression).split() if expression else []


def interruption(stop: KeyboardInterrupt) -> str:
    """What ended the program: Ctrl-C, or the signal that `stop` carries, for which Slurm may know the reason."""
    if not stop.args:
        return "interrupted by Ctrl-C"
    if not allocated():
        return f"interrupted by {signal.Signals(stop.args[0]).name}"
    job = os.environ["SLURM_JOB_ID"]
    with contextlib.suppress(ScalingError):
        state = parse_scontrol(answer("scontrol", "--oneliner", "show", "job", job, again_s=()))
        if state is not None and state.state == "RUNNING":
            return f"job {job} was told to end: its time limit is near, or it is preempted"
    return ended_by_slurm(job)


def ended_by_slurm(job: str) -> str:
    """The cause as far as it is known inside a job while Slurm ends it. Slurm gives the reason only afterwards."""
    return f"job {job} was ended by Slurm"


def _address(node: str, interface: str | None) -> str:
    """An address at which other nodes reach this one.

    The address of `interface` where `node` is this machine, else what Slurm has for the node.
    """
    if interface is not None and node.partition(".")[0] == socket.gethostname().partition(".")[0]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            asked = struct.pack("256s", interface.encode())
            siocgifaddr = 0x8915  # linux/sockios.h
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), siocgifaddr, asked)[20:24])
    match = re.search(r"NodeAddr=(\S+)", answer("scontrol", "show", "node", node))
    name = match.group(1) if match else node
    with contextlib.suppress(OSError):
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        # In many hosts files a machine's own name is a loopback address, which other nodes cannot reach.
        return next((a for a in addresses if not ipaddress.ip_address(a.split("%")[0]).is_loopback), name)
    return name
