"""Inside a Slurm allocation: which nodes there are, the srun of a launch, and what srun says when a node ends.

One srun task a node starts torchrun there; the first node of the launch is the rendezvous, by address. Every
rank sees all GPUs of its node: no --gpus-per-task, no --gpu-bind, which cost NVLink and P2P.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from scaling import resources
from scaling.cluster import Container
from scaling.errors import InputError, ScalingError
from scaling.largest import MEASURE
from scaling.launchers.queue import parse_scontrol
from scaling.launchers.torchrun import Command, nccl_log, worker_arguments
from scaling.plan import Plan
from scaling.spec import Spec
from scaling.store import LaunchFolder, RunFolder

ASK_S = 60
AGAIN_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Pauses before a controller that is busy is asked again: a launch of days is not lost over one answer."""
_BUSY = re.compile(r"timed out|unable to contact|connect|zero bytes|standby|temporarily", re.IGNORECASE)
"""In the words of Slurm's commands (slurm/slurm_errno.h: communication errors)."""
IN_IMAGE = "/opt/scaling-harness"
"""Where a container finds this program."""
PORTS = range(20000, 32000)
"""Below the kernel's own choices (32768 and up), above what services take."""
_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes that a launch can have now, in Slurm's order, and the first one's address."""

    job: str
    nodes: tuple[str, ...]
    address: str
    lost: tuple[str, ...] = ()
    """Nodes of the job that failed, are down or do not answer."""


def allocated() -> bool:
    """Whether this is run inside a Slurm job."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ


def require_allocation(plan: Plan) -> None:
    """InputError when a plan for Slurm cannot run where this is run."""
    spec = plan.spec
    if spec.launcher != "slurm":
        return
    if not allocated():
        raise InputError(
            f"topology={spec.topology.name}: it needs a Slurm allocation; use `scaling submit`, or run inside "
            f"`salloc --nodes={plan.hosts} --exclusive`"
        )
    gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if spec.topology.backend == "nccl" and gpus.isdigit() and int(gpus) < spec.topology.ranks_per_host:
        raise InputError(
            f"topology.ranks_per_host={spec.topology.ranks_per_host}: the allocation has {gpus} GPUs on a node; "
            "use as many ranks, or ask for more GPUs"
        )


def allocation(plan: Plan) -> Allocation:
    """What of this job's nodes can be used now; stand-ins outside of a job. ScalingError when none can."""
    if not allocated():
        return Allocation(job="0", nodes=tuple(f"NODE{k}" for k in range(plan.hosts)), address="NODE0")
    job = os.environ["SLURM_JOB_ID"]
    names = _hostnames(os.environ["SLURM_JOB_NODELIST"])
    # Slurm takes a node that failed off the job (--no-kill), also when it is up again by now.
    kept = _hostnames(_ask("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
    dead = down(_ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %t"))
    nodes = tuple(name for name in names if name in kept and name not in dead)
    if not nodes:
        raise ScalingError(f"no node of job {job} is up: {', '.join(names)}")
    return Allocation(
        job=job,
        nodes=nodes,
        address=_address(nodes[0], plan.spec.cluster.interface),
        lost=tuple(name for name in names if name not in nodes),
    )


def fitting(plan: Plan, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
    """World sizes that the nodes that are up hold, and which nodes the others miss."""
    try:
        where = allocation(plan)
    except ScalingError as error:
        return (), str(error)
    room = len(where.nodes)
    fit = tuple(n for n in sizes if plan.spec.topology.hosts_of(n) <= room)
    if len(fit) == len(sizes):
        return fit, None
    gone = f"node {', '.join(where.lost)} is lost" if where.lost else f"job {where.job} has {room} nodes"
    others = ", ".join(str(n) for n in sizes if n not in fit)
    return fit, f"{gone}: no room for world size {others}"


def interruption() -> str:
    """Why SIGTERM came, as far as Slurm says."""
    if not allocated():
        return "interrupted by SIGTERM"
    job = os.environ["SLURM_JOB_ID"]
    with contextlib.suppress(ScalingError):
        state = parse_scontrol(_ask("scontrol", "--oneliner", "show", "job", job, again_s=()))
        if state is not None and state.state == "RUNNING":
            return f"job {job} was told to end: its time limit is near, or it is preempted"
    return ended_by_slurm(job)


def ended_by_slurm(job: str) -> str:
    """All that is known inside of a job while Slurm ends it: only afterwards is there a word for why."""
    return f"job {job} was ended by Slurm"


def down(sinfo: str) -> set[str]:
    """Nodes that no step can be started on, from `sinfo --noheader --Node --format=%N %t`.

    A star marks a node that does not answer; one that is draining goes on with the job it has.
    """
    states = (line.split() for line in sinfo.splitlines() if len(line.split()) == 2)
    return {
        name for name, state in states if state.endswith("*") or state.startswith(("down", "fail", "unk"))
    }


def blamed(text: str) -> str | None:
    """The node that ended a launch, from what srun printed: killed from outside, or gone; None for anything else.

    Only the first word counts: srun ends the other nodes' tasks itself, and says so of each.
    """
    for line in text.splitlines():
        if gone := re.search(r"Node failure on (\S+)|ON (\S+) CANCELLED AT .* DUE TO NODE FAILURE", line):
            return f"node {gone.group(1) or gone.group(2)} failed"
        if ended := re.search(r"srun: error: ([\w.-]+): tasks? [\d,-]+: (.+)", line):
            node, how = ended.groups()
            # Of memory Slurm speaks for the whole step, whichever process it was: which rank, torchrun knows.
            theirs = how.startswith(("Exited", "Out Of Memory"))
            return None if theirs else f"torchrun on node {node}: {how}"
    return None


def command(
    plan: Plan,
    folder: RunFolder,
    launch: LaunchFolder,
    sizes: list[int],
    where: Allocation,
    what: str = MEASURE,
) -> Command:
    """One launch over as many nodes as its largest world size needs."""
    spec, shares = plan.spec, plan.spec.topology.shares(max(sizes))
    hosts = len(shares)
    container = spec.cluster.container
    inside = container.image is not None
    scripts = f"{IN_IMAGE}/launch" if inside else str(resources.folder("launch"))
    node = [
        f"{scripts}/slurm_node.sh",
        ",".join(map(str, shares)),
        spec.topology.backend,
        f"--nnodes={hosts}",
        f"--master-addr={where.address}",
        f"--master-port={port(where.job, launch.index)}",
        *worker_arguments(folder, launch, sizes, what),
    ]
    srun = [
        "srun",
        f"--nodes={hosts}",
        f"--ntasks={hosts}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(where.nodes[:hosts])}",
        "--export=ALL",
        "--mpi=none",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        f"--output={launch.path.absolute()}/torchrun-%n.txt",
    ]
    if inside:
        mounts = [*_mounts(folder), *container.mounts]
        wrapped = _pyxis if container.runtime == "pyxis" else _apptainer
        argv = [*srun, *wrapped(container, mounts, spec.topology.device), *node]
    else:
        argv = [*srun, *node]
    env = {**nccl_log(spec, launch), **_environment(spec)}
    ranks = spec.topology.started(max(sizes))
    return Command(argv=tuple(argv), env=env, ranks=ranks, start_s=spec.cluster.start_s)


def port(job: str, launch: int) -> int:
    """The rendezvous's: told by the job and the launch, so that two jobs on one node and two launches differ."""
    return PORTS[(int(job) * 31 + launch * 7) % len(PORTS)]


def _environment(spec: Spec) -> dict[str, str]:
    cluster = spec.cluster
    inside = cluster.container.image is not None
    env = {
        "SCALING_PYTHON": cluster.container.python if inside else sys.executable,
        "PYTHONPATH": IN_IMAGE if inside else resources.import_path(),
        "PYTHONUNBUFFERED": "1",
    }
    if cluster.interface is not None:
        env |= {"GLOO_SOCKET_IFNAME": cluster.interface, "NCCL_SOCKET_IFNAME": cluster.interface}
    if spec.topology.device == "cuda" and cluster.numa_binding != "none":
        env["SCALING_NUMA_BINDING"] = cluster.numa_binding
    return env | cluster.env | spec.env


def _mounts(folder: RunFolder) -> list[str]:
    own = (
        (resources.import_root() / "scaling", f"{IN_IMAGE}/scaling"),
        (resources.folder("launch"), f"{IN_IMAGE}/launch"),
        (folder.path.absolute(), folder.path.absolute()),
        (Path.cwd(), Path.cwd()),
    )
    return [f"{source}:{target}" for source, target in own]


def _pyxis(container: Container, mounts: list[str], _device: str) -> list[str]:
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={Path.cwd()}",
    ]


def _apptainer(container: Container, mounts: list[str], device: str) -> list[str]:
    nv = ["--nv"] if device == "cuda" else []
    where = [f"--bind={','.join(mounts)}", f"--pwd={Path.cwd()}"]
    return ["apptainer", "exec", *nv, *where, str(container.image)]


def _address(node: str, interface: str | None) -> str:
    """An address of a node that the others reach: its interface's where that is this machine's, else Slurm's."""
    if interface is not None and node.partition(".")[0] == socket.gethostname().partition(".")[0]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            asked = struct.pack("256s", interface.encode())
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)[20:24])
    found = re.search(r"NodeAddr=(\S+)", _ask("scontrol", "show", "node", node))
    name = found.group(1) if found else node
    with contextlib.suppress(OSError):
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        # A machine's own name often stands for a loopback address in its hosts file: no other node gets there.
        return next((a for a in addresses if not ipaddress.ip_address(a.split("%")[0]).is_loopback), name)
    return name


def _hostnames(expression: str) -> list[str]:
    """`pcie[1-2]` -> pcie1, pcie2."""
    return _ask("scontrol", "show", "hostnames", expression).split() if expression else []


def _ask(*argv: str, again_s: tuple[float, ...] = AGAIN_S) -> str:
    """What Slurm says; a controller that is busy or away is asked again after each of these pauses."""
    for pause in (*again_s, None):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, check=False)
        except subprocess.TimeoutExpired as error:
            failed = ScalingError(f"{argv[0]}: {error}")
        except OSError as error:
            raise ScalingError(f"{argv[0]}: {error}") from error
        else:
            if not done.returncode:
                return done.stdout
            failed = ScalingError(f"{argv[0]}: {done.stderr.strip()}")
            if not _BUSY.search(done.stderr):
                raise failed
        if pause is not None:
            time.sleep(pause)
    raise failed
