"""The torchrun line that every launcher ends in, and the environment that every worker gets.

Two launchers: the local one, a torchrun on this machine; and the emulated one, hosts in network namespaces of this
machine, joined by links of a set rate. At the end: what devices need before ranks start. Several NCCL ranks of one GPU:
whether the NCCL that they will load can join them. The simulated accelerator: it is built before, since peers of a rank
that builds it would wait for it in a collective.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scaling import resources
from scaling.errors import InputError
from scaling.launchers.launcher import Command, Launcher, LaunchRequest
from scaling.plain import tell
from scaling.reading import system_text
from scaling.records.encoding import digest_of
from scaling.settings.cases import MEASURE
from scaling.settings.plan import PLAN_DIGEST, Plan
from scaling.settings.run import Spec
from scaling.settings.timeouts import lazy
from scaling.settings.topology import GPU, MULTI_RANK, MULTI_RANK_NCCL


def torchrun(request: LaunchRequest, ranks: int, *where: str, bind: bool = False) -> tuple[str, ...]:
    """`launch/torchrun.sh` with `ranks` workers on one host; `where` says how hosts find each other.

    `bind`: by way of `launch/bind.sh`, which binds ranks to cores.
    """
    launch = resources.folder("launch")
    return (
        *((str(launch / "bind.sh"), str(ranks)) if bind else (str(launch / "torchrun.sh"),)),
        request.spec.topology.backend,
        f"--nproc-per-node={ranks}",
        *where,
        *program_arguments(request),
    )


def program_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """The end of every torchrun line: its own last options, and `program`, or our worker and what it is to measure.

    torchrun gets a log folder in the launch's folder. Without one it makes a temporary folder and leaves it behind;
    with /dev/null it does not end after a signal (torch 2.13: it never stops its threads that tail the logs).
    """
    options = ("--max-restarts=0", f"--log-dir={request.launch.torchrun.absolute()}")
    if request.program:
        return (*options, *request.program)
    run, sizes = str(request.folder.path.absolute()), ",".join(map(str, request.world_sizes))
    asked = () if request.what == MEASURE else (request.what,)
    return (*options, "-m", "scaling.worker", run, str(request.launch.index), sizes, *asked)


def environment(
    request: LaunchRequest,
    *,
    python: str = sys.executable,
    import_path: str | None = None,
    interface: str | None = None,
) -> dict[str, str]:
    """The interpreter, where it imports this package from, and the network interface that Gloo uses.

    NCCL writes its log into the launch's folder, a file a process. Our own ranks are told which plan to follow, and how
    many of them connect over Gloo (scaling/settings/timeouts.py); a script of the user's has no plan, and may need a
    mesh.
    """
    variables: dict[str, str] = {}
    if request.spec.topology.backend == "nccl":  # NCCL replaces %h and %p
        variables["NCCL_DEBUG_FILE"] = str(request.launch.nccl_log("%h", "%p").absolute())
    if not request.program:
        variables[PLAN_DIGEST] = digest_of(request.plan)
        variables |= {"TORCH_GLOO_LAZY_INIT": "1"} if lazy(request.ranks) else {}
    variables["SCALING_PYTHON"] = python
    variables["PYTHONPATH"] = resources.import_path() if import_path is None else import_path
    variables["PYTHONUNBUFFERED"] = "1"
    return variables if interface is None else variables | {"GLOO_SOCKET_IFNAME": interface}


def with_given(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """A launch's environment with the variables that a config gives; of import paths this package's comes first."""
    together = {**variables, **given}
    if "PYTHONPATH" in given:
        package, _, inherited = variables["PYTHONPATH"].partition(os.pathsep)
        paths = (package, given["PYTHONPATH"], inherited)
        together["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return together


def numa_binding(spec: Spec) -> dict[str, str]:
    """How `launch/bind.sh` binds ranks to the cores near their GPUs; empty where they are not to be bound."""
    binding = spec.cluster.numa_binding
    return {"SCALING_NUMA_BINDING": binding} if spec.topology.device == GPU and binding != "none" else {}


WHERE = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")


def reaped(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command, started by `launch/reaper.py`, which ends every process that it leaves behind."""
    return (sys.executable, "-I", "-S", str(resources.folder("launch") / "reaper.py"), *argv)


class Local(Launcher):
    """All ranks on this machine."""

    def require(self, plan: Plan) -> None:
        """Ranks meet over loopback; simulated accelerators have to be built; ranks of one GPU need a new NCCL."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
                datagrams.connect(("127.0.0.1", 9))  # looks for a way there, and sends nothing
        except OSError as error:
            raise InputError(
                f"topology={plan.spec.topology.name}: ranks meet on 127.0.0.1, which does not answer "
                f"({error.strerror or error}); set the loopback interface up (ip link set lo up)"
            ) from error
        build_device(plan)
        if shares_gpu(plan.spec):
            require_nccl(plan.spec)

    def command(self, request: LaunchRequest) -> Command:
        """One torchrun over the loopback interface; beside an MPS server where its ranks share a GPU."""
        bound = numa_binding(request.spec)
        env = with_given({**environment(request, interface="lo"), **bound}, request.spec.env)
        argv = reaped(torchrun(request, request.ranks, *WHERE, bind=bool(bound)))
        if shares_gpu(request.spec):
            argv = (str(resources.folder("launch") / "mps.sh"), *argv)
        return Command(argv=argv, env=env, ranks=request.spec.topology.started(request.ranks))


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
            raise InputError(
                f"{asked}: emulated hosts need user namespaces, which this system refuses "
                f"({tried.stderr.strip()}); allow them (docs/troubleshooting.md), or use topology=local"
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
            here = inject.rank is None or topology.host_of(inject.rank) == host
            slowed = here and inject.link_rate_bit_s is not None
            hosts.append(
                {
                    "name": f"host{host}",
                    "address": f"10.77.0.{host + 1}",
                    "rate_bit_s": inject.link_rate_bit_s if slowed else topology.link.rate_bit_s,
                    "command": torchrun(request, ranks, *where),
                    "env": with_given(environment(request, interface="eth0"), request.spec.env),
                    "log": str(request.launch.agent_log(host).absolute()),
                }
            )
        network = {"hosts": hosts, "grace_s": GRACE_S, "caller_pid": os.getpid()}
        script, file = str(resources.folder("launch") / "emulated_hosts.py"), request.launch.fabric.absolute()
        return Command(
            argv=(*_UNSHARE, sys.executable, script, str(file), digest_of(network)),
            env={},
            network=network,
            hosts=len(shares),
            ranks=topology.started(request.ranks),
            blamed=blamed,
        )


def blamed(text: str) -> str | None:
    """The host whose torchrun was killed before any other host ended, from what the script printed; else None."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and ("signal" in record or record.get("status", 0)):
                killed = record.get("status") == 128 + signal.SIGKILL
                return f"torchrun on {record['host']} was ended by SIGKILL" if killed else None
    return None


MPS = "nvidia-cuda-mps-control"
MPS_LIMIT_S = 20
ASK = """
import ctypes, sys
for path in (None, *sys.argv[1:]):
    try:
        code = ctypes.c_int(0)
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
            print(code.value)
            break
    except (OSError, AttributeError):
        pass
"""
"""Asks a preloaded NCCL for its version, else the one whose file is given, without an import of torch."""


def shares_gpu(spec: Spec) -> bool:
    """Whether NCCL was told that ranks of this machine may share a GPU."""
    topology = spec.topology
    on_one = topology.device == GPU and topology.backend == "nccl" and spec.launcher == "local"
    return on_one and spec.env.get(MULTI_RANK) == "1"


def require_nccl(spec: Spec) -> None:
    """InputError where the NCCL that ranks will load is too old to join ranks of one GPU. Says where MPS is missing.

    Where torch has NCCL inside, nobody can tell before it is imported, and the ranks say so.
    """
    code = _nccl_code(spec)
    if code is not None and code < MULTI_RANK_NCCL[0] * 10_000 + MULTI_RANK_NCCL[1] * 100:
        least = ".".join(map(str, MULTI_RANK_NCCL))
        loaded = f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
        wheel = f"nvidia-nccl-cu{_cuda_of_torch()}"
        raise InputError(
            f"topology={spec.topology.name}: ranks of one GPU need NCCL {least} or later, and {loaded} is loaded; "
            f"pip install --no-deps --target nccl '{wheel}>={least}', and here: "
            "export LD_PRELOAD=$PWD/nccl/nvidia/nccl/lib/libnccl.so.2"
        )
    if shutil.which(MPS) is None:
        _say(mps_line())


_say = functools.cache(tell)
"""Once: a plan is checked before its run is made, and again where it begins."""


def mps_line() -> str:
    """What MPS does for a launch here, in words."""
    if shutil.which(MPS) is None:
        return f"one GPU shared without MPS ({MPS} is not on the PATH): ranks take turns, collectives take milliseconds"
    return "one GPU shared by MPS, which each launch starts and ends, unless a server of yours runs"


def _nccl_code(spec: Spec) -> int | None:
    """NCCL_VERSION_CODE of what ranks will load, from 2.9 on; None where it cannot be told here."""
    torch = _torch_folder()
    library = torch.parent / "nvidia/nccl/lib/libnccl.so.2" if torch else None
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, *([str(library)] if library and library.is_file() else [])],
            env={**os.environ, **spec.env},
            capture_output=True,
            text=True,
            timeout=MPS_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else None


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")  # finds it, and imports nothing
    return Path(spec.origin).parent if spec and spec.origin else None


def _cuda_of_torch() -> str:
    """The major version of the CUDA that torch was built with; 13 where its files do not say."""
    folder = _torch_folder()
    text = system_text(folder / "version.py") if folder else None
    named = re.search(r"^cuda\b[^=]*= '(\d+)", text or "", re.MULTILINE)
    return named[1] if named else "13"


BUILD_LIMIT_S = 960
"""A build takes about a minute of processor time; it has a limit of its own below this one."""


def build_device(plan: Plan) -> None:
    """Build what a plan on simulated accelerators needs and the cache lacks. InputError where it cannot be built."""
    if plan.spec.topology.is_simulated:
        _build()


@functools.cache
def _build() -> None:
    """Once: a plan is checked, its step timed and its run begun by one process."""
    resources.require_simulator()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scaling_simulator"],
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"topology.device=sim: it was not built within {BUILD_LIMIT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(f"topology.device=sim: {lines[-1] if lines else f'failed with {done.returncode}'}")
