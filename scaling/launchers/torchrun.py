"""The torchrun line that every launcher ends in, and the environment that every worker gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scaling import resources
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.spec.batch_search import MEASURE
from scaling.spec.run import Spec


def torchrun(
    spec: Spec,
    ranks: int,
    folder: RunFolder,
    launch: LaunchFolder,
    sizes: list[int],
    *where: str,
    what: str = MEASURE,
    program: Sequence[str] = (),
) -> list[str]:
    """`launch/torchrun.sh` with `ranks` workers on one host; `where` says how hosts find each other."""
    return [
        str(resources.folder("launch") / "torchrun.sh"),
        spec.topology.backend,
        f"--nproc-per-node={ranks}",
        *where,
        *program_arguments(folder, launch, sizes, what, program),
    ]


def program_arguments(
    folder: RunFolder,
    launch: LaunchFolder,
    sizes: list[int],
    what: str = MEASURE,
    program: Sequence[str] = (),
) -> list[str]:
    """The end of every torchrun line: its own last options, and `program`, or our worker and what it is to measure.

    torchrun gets a log folder in the launch's folder. Without one it makes a temporary folder and leaves it behind;
    with /dev/null it does not end after a signal (torch 2.13: it never stops its threads that tail the logs).
    """
    run, these = str(folder.path.absolute()), ",".join(map(str, sizes))
    asked = [] if what == MEASURE else [what]
    own = ["--max-restarts=0", f"--log-dir={launch.torchrun.absolute()}"]
    if program:
        return [*own, *program]
    return [*own, "-m", "scaling.worker", run, str(launch.index), these, *asked]


def environment(
    python: str = sys.executable, import_path: str | None = None, interface: str | None = None
) -> dict[str, str]:
    """The interpreter, where it imports this package from, and the network interface that Gloo uses."""
    found = {
        "SCALING_PYTHON": python,
        "PYTHONPATH": resources.import_path() if import_path is None else import_path,
        "PYTHONUNBUFFERED": "1",
    }
    return found if interface is None else found | {"GLOO_SOCKET_IFNAME": interface}


def nccl_log(spec: Spec, launch: LaunchFolder) -> dict[str, str]:
    """Where NCCL writes its log, a file a process; empty for other back ends."""
    if spec.topology.backend != "nccl":
        return {}
    return {"NCCL_DEBUG_FILE": str(launch.nccl_log("%h", "%p").absolute())}  # NCCL replaces %h and %p
