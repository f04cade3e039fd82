"""Ask Slurm how a job stands, and cancel it.

The order is squeue, then scontrol (which remembers an ended job for MinJobAge, by default five minutes), then sacct
where the site has accounting. A job that none of them knows ended long ago.
Output formats are given field by field, since the default tables change between versions.

Run one of Slurm's commands, with a time limit; ask again where the controller is busy.

jobs.json: the Slurm jobs that were submitted for a run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Annotated

from scaling.errors import InputError, ScalingError
from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.settings.bounds import Named

ASK_S = 60
"""Time limit of a command: a busy controller can keep it waiting (Slurm's own MessageTimeout is 10 s)."""
AGAIN_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Pauses between attempts, so that one missing answer does not end a launch of days."""
_BUSY = re.compile(r"timed out|unable to contact|connect|zero bytes|standby|temporarily", re.IGNORECASE)
"""Communication errors as Slurm's commands print them (slurm/slurm_errno.h)."""


def run(
    *command: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command once, with `stdin` on its standard input.

    InputError where it is not installed, ScalingError where it gives no answer in time.
    """
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=ASK_S, check=False, env=env
        )
    except FileNotFoundError as error:
        raise InputError(f"{command[0]}: not found; run this on a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise ScalingError(f"{command[0]}: no answer from Slurm within {ASK_S} s") from error


def answer(*command: str, again_s: tuple[float, ...] = AGAIN_S) -> str:
    """What a command prints. A busy controller is asked again after each pause; ScalingError when all attempts fail."""
    for pause in (*again_s, None):
        try:
            done = run(*command)
        except (InputError, OSError) as error:
            raise ScalingError(str(error)) from error
        except ScalingError as error:
            failed = error
        else:
            if not done.returncode:
                return done.stdout
            failed = ScalingError(f"{command[0]}: {done.stderr.strip()}")
            if not _BUSY.search(done.stderr):
                raise failed
        if pause is not None:
            time.sleep(pause)
    raise failed


_QUEUE_FORMAT = "%T|%r|%N|%S|%L"
_UNKNOWN = "invalid job id"
"""squeue and scontrol print this for a job that they no longer know; other failures say nothing about the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job, in Slurm's terms."""

    state: str
    """Such as PENDING, RUNNING, COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED."""
    reason: str = ""
    nodes: str = ""
    start: str = ""
    """Expected or past; empty where unknown."""
    left: str = ""
    """Time until the limit; empty where unknown."""
    exit_code: int | None = None

    @property
    def over(self) -> bool:
        """Whether the job has ended and Slurm will not start it again."""
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


def state_of(job: str) -> JobState | None:
    """The state of a job; None where Slurm no longer knows it. ScalingError where Slurm gives no answer."""
    _number(job)
    state = parse_squeue(_job_output("squeue", "--noheader", f"--jobs={job}", f"--format={_QUEUE_FORMAT}"))
    state = state or parse_scontrol(_job_output("scontrol", "--oneliner", "show", "job", job))
    if state is None and shutil.which("sacct") is not None:
        fields = "State,ExitCode,NodeList,Start"
        options = ("--noheader", "--allocations", "--parsable2", f"--format={fields}", f"--jobs={job}")
        state = parse_sacct(run("sacct", *options).stdout)
    return state


def waiting_ahead(job: str, partition: str | None) -> int | None:
    """How many jobs of its partition have a higher priority; None where squeue does not list the job."""
    where = [] if partition is None else [f"--partition={partition}"]
    done = run("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i", *where)
    waiting = done.stdout.split()
    return waiting.index(job) if job in waiting else None


def cancel(job: str) -> None:
    """Cancel a job. ScalingError with Slurm's message where it refuses."""
    done = run("scancel", _number(job))
    if done.returncode:
        raise ScalingError(f"scancel: {done.stderr.strip()}")


def parse_squeue(text: str) -> JobState | None:
    """The line of `squeue --noheader --format=%T|%r|%N|%S|%L` for one job."""
    fields = text.strip().split("|")
    if len(fields) != 5:
        return None
    state, reason, nodes, start, left = (_filled(field) for field in fields)
    return JobState(state=_word(state), reason=reason, nodes=nodes, start=start, left=left)


def parse_scontrol(text: str) -> JobState | None:
    """`scontrol --oneliner show job`: KEY=VALUE pairs; newer versions print more of them."""
    fields = {key: _filled(value) for key, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", text)}
    if "JobState" not in fields:
        return None
    return JobState(
        state=_word(fields["JobState"]),
        reason=fields.get("Reason", ""),
        nodes=fields.get("NodeList", ""),
        start=fields.get("StartTime", ""),
        exit_code=_code(fields.get("ExitCode", "")),
    )


def parse_sacct(text: str) -> JobState | None:
    """The last line of `sacct --parsable2 --format=State,ExitCode,NodeList,Start`: the latest start of the job."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    if not lines:
        return None
    state, code, nodes, start = (_filled(field) for field in lines[-1])
    return JobState(state=_word(state), nodes=nodes, start=start, exit_code=_code(code))


def _number(job: str) -> str:
    """The id of a job, which comes from a file; InputError where Slurm's commands could take it for an option."""
    if re.fullmatch(r"\d+([_.+]\d+)?", job) is None:
        raise InputError(f"{job!r}: not the id of a Slurm job; the run's jobs.json must hold a number")
    return job


def _job_output(*command: str) -> str:
    """What a command prints about a job; empty where Slurm does not know the job. ScalingError on other failures."""
    done = run(*command)
    if done.returncode and _UNKNOWN not in done.stderr.lower():
        errors = done.stderr.strip().splitlines() or ["it failed and printed nothing"]
        raise ScalingError(f"{command[0]}: {errors[-1]}")
    return done.stdout


def _filled(field: str) -> str:
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


SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One job that was submitted for a run."""

    id: Annotated[str, Named()]
    at: str
    partition: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """jobs.json: the jobs of a run, the latest last."""

    schema: int
    jobs: tuple[Submitted, ...]


def submitted(folder: RunFolder) -> tuple[Submitted, ...]:
    """The jobs that were submitted for a run, the latest last."""
    return read_json(folder.jobs, Jobs, SCHEMA).jobs if folder.jobs.is_file() else ()
