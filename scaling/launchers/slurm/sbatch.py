"""Hand a job's script to sbatch, and say which key to change when Slurm refuses it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm.allocation import gets_jobs
from scaling.launchers.slurm.ask import run
from scaling.plain import message

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
_BREAKING = {"SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_TEST_ONLY"}
"""Variables that would make several jobs of one run, block, or submit nothing."""
_AWAY = "node configuration is not available"
"""`--test-only` refuses so also what sbatch queues: a job for nodes that are down or drained now."""
_KEYS = (
    ("account", "cluster.account"),
    ("qos", "cluster.qos"),
    ("partition", "cluster.partition, or the topology"),
    ("reservation", "cluster.reservation"),
    ("feature", "cluster.constraint"),
    ("constraint", "cluster.constraint"),
    ("time limit", "cluster.time"),
    ("node name", "cluster.sbatch.exclude or cluster.sbatch.nodelist"),
    ("gres", "cluster.gpus_per_node or cluster.gres"),
    ("tres", "cluster.gpus_per_node or cluster.gres"),
    ("licen", "cluster.sbatch.licenses"),
    ("node count", "topology.hosts or world_sizes"),
    ("node configuration", "topology.hosts, world_sizes, cluster.gpus_per_node or cluster.sbatch.exclude"),
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
    """Ask Slurm whether it would take a job, without submitting it. InputError with Slurm's message when not.

    A job for nodes that are away now waits for them, as Slurm lets it: a line on stderr names them.
    """
    try:
        _sbatch(script, "--test-only")
    except InputError as error:
        found = re.search(r"^#SBATCH --partition=(\S+)", script, re.MULTILINE)
        away = _away(found.group(1)) if found and _AWAY in str(error) else ""
        if not away:
            raise
        print(message(f"scaling: {away}: the job waits while too few nodes are left"), file=sys.stderr)


def _away(partition: str) -> str:
    """The nodes of a partition that get no jobs now, each with its state and the admin's reason; empty for none."""
    done = run("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%t|%E")
    lines = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    return "; ".join(f"node {name}: {state} ({why})" for name, state, why in lines if not gets_jobs(state))


def hand_in(script: str) -> str:
    """Submit a job and return its id.

    InputError with Slurm's message where it refuses; ScalingError where the job may be queued all the same.
    """
    try:
        return _number(_sbatch(script, "--parsable"))
    except InputError:
        raise
    except ScalingError as error:
        raise ScalingError(
            f"{error}; the job may be queued all the same; check with `squeue --me`"
        ) from error


def _number(printed: str) -> str:
    number = printed.partition(";")[0].strip()
    if not number.isdigit():
        raise ScalingError(f"sbatch: printed no job's number but {printed.strip()[:100]!r}")
    return number


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
    return {name: value for name, value in environment.items() if name not in overriding | _BREAKING}


def refusal(stderr: str) -> str:
    """Slurm's message, and the key to change."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    # The last line often only says that it failed, and the line before it says why.
    text = "; ".join(dict.fromkeys(re.sub(r"^(sbatch|allocation failure): (error: )?", "", x) for x in said))
    key = next((key for word, key in _KEYS if word in text.lower()), None)
    return f"sbatch: {text or 'it failed and printed nothing'}" + (f" ({key})" if key else "")
