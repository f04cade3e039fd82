"""Slurm's commands: hand in a job, ask how it stands, cancel it.

Asked are squeue, then scontrol (which remembers an ended job for MinJobAge, five minutes unless the site says
otherwise), then sacct where there is accounting; a job that none of them knows is one that ended long ago.
Formats are spelled out field by field: those have not changed between versions, the default tables have.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from scaling.errors import InputError, ScalingError

ASK_S = 60
"""A controller that is busy or away may keep a command waiting so long (Slurm's own MessageTimeout is 10 s)."""

_QUEUE_FORMAT = "%T|%r|%N|%S|%L"
_UNKNOWN = "invalid job id"
"""In squeue's and scontrol's words for a job that they know no more; any other failure says nothing of it."""
_LATE = "timed out"
"""In sbatch's words where the controller was too busy to answer: it may have taken the job."""
_OTHERWISE = {
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_NO_REQUEUE",),
    "no-requeue": ("SBATCH_REQUEUE",),
    "gpus-per-node": ("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK"),
}
"""Options whose variable is not called like them, or that another variable's option contradicts."""
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
"""A word of sbatch's refusal -> the key to change; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a job stands, in Slurm's own words."""

    state: str
    """Such as PENDING, RUNNING, COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED."""
    reason: str = ""
    nodes: str = ""
    start: str = ""
    """Expected or past; empty where unknown."""
    left: str = ""
    """Until the time limit."""
    exit_code: int | None = None

    @property
    def over(self) -> bool:
        """Whether it will not run again by itself."""
        return self.state in _OVER


_OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)


def require_slurm() -> None:
    """InputError where there is no Slurm to submit to."""
    if shutil.which("sbatch") is None:
        raise InputError(
            "sbatch: not found; submit from a login node of the cluster, or see the script with --dry-run"
        )


def check_script(script: str) -> None:
    """Let Slurm say whether it would take a job, without handing it in. InputError with its own words."""
    _sbatch(script, "--test-only")


def hand_in(script: str) -> str:
    """Submit a job; its id. InputError with Slurm's own words where it refuses, ScalingError where it may have it."""
    try:
        return _sbatch(script, "--parsable").split(";")[0].strip()
    except InputError:
        raise
    except ScalingError as error:
        raise ScalingError(f"{error}; the job may be queued all the same: squeue --me tells") from error


def _sbatch(script: str, option: str) -> str:
    # The script comes by standard input: nothing has to be on disk for a job that is refused.
    try:
        done = subprocess.run(
            ["sbatch", option],
            input=script,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
            env=_without_options(os.environ, script),
        )
    except subprocess.TimeoutExpired as error:
        raise ScalingError(f"sbatch: no answer from Slurm within {ASK_S} s") from error
    if done.returncode:
        said = refusal(done.stderr)
        raise (ScalingError if _LATE in said.lower() else InputError)(said)
    return done.stdout


def _without_options(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Without the variables that would override what a script says itself (sbatch's INPUT ENVIRONMENT VARIABLES)."""
    said = set(re.findall(r"^#SBATCH --([\w-]+)", script, re.MULTILINE))
    overriding = {f"SBATCH_{name.upper().replace('-', '_')}" for name in said}
    overriding |= {variable for name in said for variable in _OTHERWISE.get(name, ())}
    return {name: value for name, value in environment.items() if name not in overriding}


def refusal(stderr: str) -> str:
    """Slurm's own words, and the key to change."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    # The last line often only says that it failed; the one before it, why. Times of a dry run are no refusal.
    text = "; ".join(dict.fromkeys(re.sub(r"^(sbatch|allocation failure): (error: )?", "", x) for x in said))
    key = next((key for word, key in _KEYS if word in text.lower()), None)
    return f"sbatch: {text or 'it failed without a word'}" + (f" ({key})" if key else "")


def state_of(job: str) -> JobState | None:
    """How a job stands; None where Slurm says that it knows it no more. ScalingError where it does not tell."""
    _number(job)
    found = parse_squeue(_said_of_job("squeue", "--noheader", f"--jobs={job}", f"--format={_QUEUE_FORMAT}"))
    found = found or parse_scontrol(_said_of_job("scontrol", "--oneliner", "show", "job", job))
    if found is None and shutil.which("sacct") is not None:
        fields = "State,ExitCode,NodeList,Start"
        options = ("--noheader", "--allocations", "--parsable2", f"--format={fields}", f"--jobs={job}")
        found = parse_sacct(_ask("sacct", *options).stdout)
    return found


def waiting_ahead(job: str, partition: str | None) -> int | None:
    """Jobs of its partition that would start before it, by Slurm's priorities; None where that is not to be seen."""
    where = [] if partition is None else [f"--partition={partition}"]
    done = _ask("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i", *where)
    waiting = done.stdout.split()
    return waiting.index(job) if job in waiting else None


def cancel(job: str) -> None:
    """ScalingError with Slurm's own words where it refuses."""
    done = _ask("scancel", _number(job))
    if done.returncode:
        raise ScalingError(f"scancel: {done.stderr.strip()}")


def parse_squeue(text: str) -> JobState | None:
    """The line of `squeue --noheader --format=%T|%r|%N|%S|%L` for one job."""
    fields = text.strip().split("|")
    if len(fields) != 5:
        return None
    state, reason, nodes, start, left = (_known(field) for field in fields)
    return JobState(state=_word(state), reason=reason, nodes=nodes, start=start, left=left)


def parse_scontrol(text: str) -> JobState | None:
    """`scontrol --oneliner show job`: KEY=VALUE pairs, of which newer versions print more."""
    found = {key: _known(value) for key, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", text)}
    if "JobState" not in found:
        return None
    return JobState(
        state=_word(found["JobState"]),
        reason=found.get("Reason", ""),
        nodes=found.get("NodeList", ""),
        start=found.get("StartTime", ""),
        exit_code=_code(found.get("ExitCode", "")),
    )


def parse_sacct(text: str) -> JobState | None:
    """The last line of `sacct --parsable2 --format=State,ExitCode,NodeList,Start`: the latest start of the job."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    if not lines:
        return None
    state, code, nodes, start = (_known(field) for field in lines[-1])
    return JobState(state=_word(state), nodes=nodes, start=start, exit_code=_code(code))


def _number(job: str) -> str:
    """InputError where a job's id, which comes from a file, is none: to Slurm's commands it might be an option."""
    if re.fullmatch(r"\d+([_.+]\d+)?", job) is None:
        raise InputError(f"{job!r}: not a Slurm job's id; a number is expected in the run's jobs.json")
    return job


def _said_of_job(*command: str) -> str:
    """What Slurm prints of a job, nothing where it knows none of that number. ScalingError where it fails otherwise."""
    done = _ask(*command)
    if done.returncode and _UNKNOWN not in done.stderr.lower():
        said = done.stderr.strip().splitlines() or ["it failed without a word"]
        raise ScalingError(f"{command[0]}: {said[-1]}")
    return done.stdout


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{command[0]}: not found; ask from a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise ScalingError(f"{command[0]}: no answer from Slurm within {ASK_S} s") from error


def _known(field: str) -> str:
    return "" if field.strip() in ("", "N/A", "None", "(null)", "Unknown", "None assigned") else field.strip()


def _word(state: str) -> str:
    """`CANCELLED by 1000`, `CANCELLED+` -> CANCELLED."""
    return (state.split() or [""])[0].rstrip("+").upper()


def _code(text: str) -> int | None:
    """The status in `3:0` (status:signal); 128 + n for a signal, as shells count."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return 128 + int(number) if number.isdigit() and int(number) else int(code)
