"""The torchrun line that every launcher ends in, and what a launcher hands over to be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaling import resources
from scaling.largest import MEASURE
from scaling.spec import Spec
from scaling.store import LaunchFolder, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its environment on top of the caller's, and the network it needs (emulated only)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    network: dict[str, Any] | None = None
    ranks: tuple[int, ...] = ()
    """Of the processes in torchrun's own numbering."""
    start_s: int = 120
    """Start-up of torchrun and set-up of the model may take so long without a word."""


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
        *where,
        *worker_arguments(folder, launch, sizes, what),
    ]


def nccl_log(spec: Spec, launch: LaunchFolder) -> dict[str, str]:
    """Where NCCL is to write what the profile asks of it, a file a process; nothing where it carries nothing."""
    if spec.topology.backend != "nccl":
        return {}
    return {"NCCL_DEBUG_FILE": str(launch.nccl_log("%h", "%p").absolute())}  # both are NCCL's to fill in


def worker_arguments(
    folder: RunFolder, launch: LaunchFolder, sizes: list[int], what: str = MEASURE
) -> list[str]:
    """What ends every torchrun line: our worker, and what it is to measure.

    Told nowhere, torchrun makes itself a log folder in the system's temporary folder and leaves it there. Told
    /dev/null it tails that, and never ends where a signal ends it (torch 2.13: its tails are not stopped).
    """
    run, these = str(folder.path.absolute()), ",".join(map(str, sizes))
    asked = [] if what == MEASURE else [what]
    own = ["--max-restarts=0", f"--log-dir={launch.torchrun.absolute()}"]
    return [*own, "-m", "scaling.worker", run, str(launch.index), these, *asked]
