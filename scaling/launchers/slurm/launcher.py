"""The Slurm launcher: one srun in the allocation that this program runs in, one task a node, torchrun in each.

The first node of the launch is the rendezvous, by address. Every rank sees all GPUs of its node: --gpus-per-task and
--gpu-bind are not used, because NVLink and P2P need it so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.launchers.launcher import Command, Launcher, LaunchRequest
from scaling.launchers.slurm.queue import JobAllocation, allocated, allocation
from scaling.launchers.torchrun import environment, numa_binding, program_arguments, with_given
from scaling.records.checkup import DOCTOR
from scaling.settings.plan import Plan
from scaling.settings.timeouts import start_limit_s
from scaling.settings.topology import GPU

IN_IMAGE = "/opt/scaling-harness"
"""Where a container finds this program."""
PORTS = range(20000, 32000)
"""Below the kernel's own choices (32768 and up), above what services take."""


class Slurm(Launcher):
    """The ranks on the nodes of an allocation."""

    def require(self, plan: Plan) -> None:
        """InputError outside of an allocation, or in one with too few GPUs on a node."""
        topology, allocations = plan.spec.topology, plan.spec.cluster.allocations
        if allocations > 1:
            raise InputError(
                f"cluster.allocations={allocations}: `scaling submit` submits a job for each; a run has one allocation"
            )
        if not allocated():
            partition = plan.spec.cluster.partition
            where = "" if partition is None else f"--partition={partition} "
            submit = "" if plan.spec.task == DOCTOR else "use `scaling submit`, or "
            raise InputError(
                f"topology={topology.name}: needs a Slurm allocation; {submit}run it inside "
                f"`salloc {where}--nodes={plan.hosts} --exclusive`"
            )
        gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
        if topology.on_device and gpus.isdigit() and int(gpus) < topology.ranks_per_host:
            raise InputError(
                f"topology.ranks_per_host={topology.ranks_per_host}: the allocation has {gpus} GPUs on a node; "
                f"set it to {gpus}, or ask Slurm for more GPUs"
            )

    def fitting(self, plan: Plan, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
        """World sizes that fit on the nodes that are up, and which nodes are missing for the others."""
        try:
            where = allocation(plan)
        except ScalingError as error:
            return (), str(error)
        room = len(where.nodes)
        fit = tuple(n for n in sizes if plan.spec.topology.hosts_of(n) <= room)
        if len(fit) == len(sizes):
            return fit, None
        gone = f"job {where.job} has {room} {'node' if room == 1 else 'nodes'}"
        if where.lost:
            gone = f"node {', '.join(where.lost)} is lost"
        others = ", ".join(str(n) for n in sizes if n not in fit)
        return fit, f"{gone}: no room for world size {others}"

    def command(self, request: LaunchRequest) -> Command:
        """The srun of one launch on the nodes that are up now."""
        return srun(request, allocation(request.plan))


def srun(request: LaunchRequest, where: JobAllocation) -> Command:
    """One launch over as many nodes as its largest world size needs."""
    spec, launch = request.spec, request.launch
    shares = spec.topology.shares(request.ranks)
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
        *program_arguments(request),
    ]
    options = {"mpi": "none", "cpu-bind": "none", "kill-on-bad-exit": "1", **spec.cluster.srun}
    started = [
        "srun",
        f"--nodes={hosts}",
        f"--ntasks={hosts}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(where.nodes[:hosts])}",
        "--export=ALL",
        *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items()),
        f"--output={launch.path.absolute()}/torchrun-%n.txt",
    ]
    if inside:
        started += _in_image(request)
    return Command(
        argv=(*started, *node),
        env=_environment(request),
        hosts=hosts,
        ranks=spec.topology.started(request.ranks),
        start_s=start_limit_s(request.plan),
        blamed=blamed,
    )


def port(job: str, launch: int) -> int:
    """The rendezvous port, from the job and the launch: two jobs on one node differ, and so do two launches."""
    return PORTS[(int(job) * 31 + launch * 7) % len(PORTS)]


def blamed(text: str) -> str | None:
    """The node that ended a launch, from what srun printed: torchrun was killed there, or the node failed; else None.

    Only the first such line counts: srun then ends the tasks of the other nodes, and prints a line for each.
    """
    for line in text.splitlines():
        if gone := re.search(r"Node failure on (\S+)|ON (\S+) CANCELLED AT .* DUE TO NODE FAILURE", line):
            return f"node {gone.group(1) or gone.group(2)} failed"
        if ended := re.search(r"srun: error: ([\w.-]+): tasks? [\d,-]+: (.+)", line):
            node, how = ended.groups()
            # Slurm reports a lack of memory for the whole step; torchrun's output says which rank it was.
            theirs = how.startswith(("Exited", "Out Of Memory"))
            return None if theirs else f"torchrun on node {node}: {how}"
    return None


def _environment(request: LaunchRequest) -> dict[str, str]:
    cluster, interface = request.spec.cluster, request.spec.cluster.interface
    container = cluster.container
    inside = {} if container.image is None else {"python": container.python, "import_path": IN_IMAGE}
    env = environment(request, interface=interface, **inside)
    env |= {} if interface is None else {"NCCL_SOCKET_IFNAME": interface}
    return with_given(env | numa_binding(request.spec), cluster.env | request.spec.env)


def _in_image(request: LaunchRequest) -> list[str]:
    """What stands before a node's command, so that it runs in the container: options of pyxis's, or a program."""
    container, run, here = request.spec.cluster.container, request.folder.path.absolute(), Path.cwd()
    mounts = (
        f"{resources.import_root() / 'scaling'}:{IN_IMAGE}/scaling",
        f"{resources.folder('launch')}:{IN_IMAGE}/launch",
        f"{run}:{run}",
        f"{here}:{here}",
        *container.mounts,
    )
    if container.runtime == "pyxis":
        image, where = f"--container-image={container.image}", f"--container-workdir={here}"
        return [image, f"--container-mounts={','.join(mounts)}", where]
    nv = ["--nv"] if request.spec.topology.device == GPU else []
    return [
        container.runtime,
        "exec",
        *nv,
        f"--bind={','.join(mounts)}",
        f"--pwd={here}",
        str(container.image),
    ]
