"""Ask Slurm how a job stands, and cancel it; which nodes this program's own job has, and how that is ended.

The order is squeue, then scontrol (which remembers an ended job for MinJobAge, by default five minutes), then sacct
where the site has accounting. A job that none of them knows ended long ago.
Output formats are given field by field, since the default tables change between versions.

Every command has a time limit; a busy controller is asked again. jobs.json has the jobs that were submitted for a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from typing import Annotated

from scaling.errors import InputError, ScalingError
from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.settings.bounds import Named
from scaling.settings.plan import Plan

ASK_S = 60
"""Time limit of a command: a busy controller can keep it waiting (Slurm's own MessageTimeout is 10 s)."""
AGAIN_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Pauses between attempts, so that one missing answer does not end a launch of days."""
_BUSY = re.compile(r"timed out|unable to contact|connect|zero bytes|standby|temporarily", re.IGNORECASE)
"""Communication errors as Slurm's commands print them (slurm/slurm_errno.h)."""


def run(
    *command: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command once. InputError where it is not installed, ScalingError where it gives no answer in time."""
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
        return self.state in _OVER.split()


_OVER = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"


def state_of(job: str) -> JobState | None:
    """The state of a job; None where Slurm no longer knows it. ScalingError where Slurm gives no answer."""
    _number(job)
    state = parse_squeue(_job_output("squeue", "--noheader", f"--jobs={job}", "--format=%T|%r|%N|%S|%L"))
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
