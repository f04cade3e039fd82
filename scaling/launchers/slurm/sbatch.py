"""Hand a job's script to sbatch, and say which key to change when Slurm refuses it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm.ask import run

_LATE = "timed out"
"""sbatch prints this when the controller was too busy to answer; Slurm may have taken the job."""
_OTHERWISE = {
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_NO_REQUEUE",),
    "no-requeue": ("SBATCH_REQUEUE",),
    "gpus-per-node": ("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK"),
}
"""Options whose variable has another name, or that contradict another option's variable."""
_KEYS = (
    ("account", "cluster.account"),
    ("qos", "cluster.qos"),
    ("partition", "cluster.partition, or the topology"),
    ("reservation", "cluster.reservation"),
    ("feature", "cluster.constraint"),
    ("constraint", "cluster.constraint"),
    ("time limit", "cluster.time"),
    ("gres", "cluster.gpus_per_node or cluster.gres"),
    ("tres", "cluster.gpus_per_node or cluster.gres"),
    ("licen", "cluster.sbatch.licenses"),
    ("node count", "topology.hosts or world_sizes"),
    ("node configuration", "topology.hosts, world_sizes or cluster.gpus_per_node"),
    ("nodes", "topology.hosts or world_sizes"),
    ("processors", "topology.hosts, world_sizes or cluster.cpus_per_rank"),
    ("memory", "cluster.sbatch.mem"),
)
"""Text in sbatch's refusal -> the key to change; the first match counts."""


def require_slurm() -> None:
    """InputError where there is no Slurm to submit to."""
    if shutil.which("sbatch") is None:
        raise InputError(
            "sbatch: not found; submit from a login node of the cluster, or see the script with --dry-run"
        )


def check_script(script: str) -> None:
    """Ask Slurm whether it would take a job, without submitting it. InputError with Slurm's message when not."""
    _sbatch(script, "--test-only")


def hand_in(script: str) -> str:
    """Submit a job and return its id.

    InputError with Slurm's message where it refuses; ScalingError where the job may be queued all the same.
    """
    try:
        return _sbatch(script, "--parsable").split(";")[0].strip()
    except InputError:
        raise
    except ScalingError as error:
        raise ScalingError(
            f"{error}; the job may be queued all the same; check with `squeue --me`"
        ) from error


def _sbatch(script: str, option: str) -> str:
    # The script goes to sbatch's standard input, so that a refused job leaves no file.
    done = run("sbatch", option, stdin=script, env=_without_options(os.environ, script))
    if done.returncode:
        said = refusal(done.stderr)
        raise (ScalingError if _LATE in said.lower() else InputError)(said)
    return done.stdout


def _without_options(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Leave out variables that would override the script's options (sbatch's INPUT ENVIRONMENT VARIABLES)."""
    said = set(re.findall(r"^#SBATCH --([\w-]+)", script, re.MULTILINE))
    overriding = {f"SBATCH_{name.upper().replace('-', '_')}" for name in said}
    overriding |= {variable for name in said for variable in _OTHERWISE.get(name, ())}
    return {name: value for name, value in environment.items() if name not in overriding}


def refusal(stderr: str) -> str:
    """Slurm's message, and the key to change."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    # The last line often only says that it failed, and the line before it says why.
    text = "; ".join(dict.fromkeys(re.sub(r"^(sbatch|allocation failure): (error: )?", "", x) for x in said))
    key = next((key for word, key in _KEYS if word in text.lower()), None)
    return f"sbatch: {text or 'it failed and printed nothing'}" + (f" ({key})" if key else "")
