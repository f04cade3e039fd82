"""The script of a Slurm job: slurm/job.sbatch with directives, interpreter and arguments filled in.

It is handed to sbatch here too; where Slurm refuses it, the message says which key to change.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm.queue import gets_jobs, run
from scaling.plain import tell
from scaling.records.paths import RunFolder
from scaling.settings.cases import LAUNCHES_MAX, PROOFS_MAX
from scaling.settings.plan import Plan
from scaling.settings.timeouts import joining, start_limit_s
from scaling.settings.topology import NO_GPUS
from scaling.units import parse_time_limit_s

_CPUS = {"cpus-per-task", "cpus-per-gpu", "mincpus"}
REPORT_S = 300
"""Time for the analysis and the reports at the end."""
EARLY_S = 60
"""Slurm may send the signal of `--signal` so much earlier than asked for (man sbatch)."""


def job_script(
    template: str, plan: Plan, folder: RunFolder, *, python: str, cwd: Path, root: Path, exclude: str = ""
) -> str:
    """The job that measures a run. `root` is the folder that this package is imported from.

    `exclude`: nodes that it does not get, as Slurm writes them, in place of those of cluster.sbatch.
    InputError where Slurm cannot take one of the paths.
    """
    cluster, topology = plan.spec.cluster, plan.spec.topology
    run = plain_path(folder.path.absolute())
    options: dict[str, str] = {
        "job-name": f"scaling-{topology.name}",
        "nodes": str(plan.hosts),
        "ntasks-per-node": "1",
        "output": str(run / "slurm-%j.out"),
        "open-mode": "append",  # a restarted job adds to its log
        "time": cluster.time or str(minutes(plan)),
        "no-kill": "",  # after a node failure, world sizes that fit on the other nodes go on
        "requeue" if cluster.requeue else "no-requeue": "",
    }
    if cluster.signal_s:
        options["signal"] = f"B:TERM@{cluster.signal_s}"
    named = ("partition", "account", "qos", "constraint", "reservation", "gres")
    options |= {name: given for name in named if (given := getattr(cluster, name)) is not None}
    needs_gpus = topology.accelerated and cluster.gres is None
    if cluster.gpus_per_node != NO_GPUS and (cluster.gpus_per_node is not None or needs_gpus):
        options["gpus-per-node"] = cluster.gpus_per_node or str(topology.ranks_per_host)
    if cluster.cpus_per_rank is not None:
        options["cpus-per-task"] = str(cluster.cpus_per_rank * topology.ranks_per_host)
    if cluster.exclusive:
        options |= {"exclusive": "", "mem": "0"}
    elif cluster.cpus_per_rank is None and not _CPUS & set(cluster.sbatch):
        raise InputError(
            "cluster.exclusive=false: without whole nodes Slurm gives one core to all ranks of a node; set the number, "
            "such as cluster.cpus_per_rank=8"
        )
    return _filled(
        template,
        options | cluster.sbatch | ({"exclude": exclude} if exclude else {}),
        python=python,
        arguments=["--resume", str(run)],
        site=[f"cd -- {shlex.quote(str(cwd))}", _import_path(root), *cluster.setup],
    )


def compare_script(
    template: str, plan: Plan, runs: list[RunFolder], into: Path, after: list[str], *, python: str, root: Path
) -> str:
    """The small job that compares runs once their jobs, `after`, have ended in any way.

    With an empty `after` it serves to ask whether Slurm would take it.
    """
    cluster = plan.spec.cluster
    options = {
        "job-name": "scaling-compare",
        "nodes": "1",
        "ntasks": "1",
        "time": "10",
        "output": str(plain_path(into.absolute()) / "compare-%j.out"),
        **({"dependency": f"afterany:{':'.join(after)}"} if after else {}),
    }
    named = ("partition", "account", "qos", "reservation")
    options |= {name: given for name in named if (given := getattr(cluster, name)) is not None}
    arguments = [str(into.absolute()), *(str(run.path.absolute()) for run in runs)]
    return _filled(
        template, options, python=python, arguments=arguments, site=[_import_path(root), *cluster.setup]
    )


def minutes(plan: Plan) -> int:
    """The time limit of a plan, minutes: the longest time that every launch may take, and a quarter more.

    Each launch that searches for the largest batch counts as long as a start.
    """
    spec, start_s = plan.spec, start_limit_s(plan)
    budget = (spec.measure.longest_s + start_s) * spec.repeats
    if spec.batch_max:
        budget += start_s * (LAUNCHES_MAX + PROOFS_MAX)
    return math.ceil((budget * 1.25 + REPORT_S + spec.cluster.signal_s) / 60)


def plain_path(path: Path) -> Path:
    r"""InputError unless Slurm takes the path as it is.

    Slurm reads % and \ in `--output` as patterns, interprets quotes, and splits mounts of containers at colons and
    commas. Such a path can work on one cluster and fail on the next, after hours in the queue.
    """
    if re.fullmatch(r"[\w./+=@~^-]+", str(path)) is None:
        raise InputError(
            f"run_dir={path}: Slurm cannot take this path; use one without spaces, quotes, colons, commas, % and \\"
        )
    return path


def limit_s(plan: Plan) -> int:
    """The time limit of the job, s."""
    return parse_time_limit_s(plan.spec.cluster.time or str(minutes(plan)), "cluster.time")


def too_short(plan: Plan) -> str | None:
    """Why the job's time limit cannot hold the budget, or None; InputError where nothing fits in before its end."""
    cluster, signal_s = plan.spec.cluster, plan.spec.cluster.signal_s
    warned = signal_s + EARLY_S if signal_s else 0
    before = limit_s(plan) - warned
    budget = (plan.spec.measure.longest_s + joining(plan).high_s) * plan.spec.repeats
    if cluster.time is None or before >= budget:
        return None
    would = f"cluster.time={minutes(plan)} holds all of it"
    told = f"up to {warned} s before its limit (cluster.signal_s={signal_s}, and Slurm's own {EARLY_S})"
    if before <= 0:
        raise InputError(
            f"cluster.time={cluster.time}: the job is told to end {told}, before it begins; {would}"
        )
    return (
        f"cluster.time={cluster.time}: the job is told to end {told}, perhaps after {before:.0f} s, and measuring may "
        f"take {budget:.0f} s; what is missing then is reported; {would}"
    )


def _filled(
    template: str, options: dict[str, str], *, python: str, arguments: list[str], site: list[str]
) -> str:
    """A template with its #SBATCH lines, `python=`, `arguments=` and `# site:` replaced; everything else stays."""
    directives = [
        f"#SBATCH --{name}={_quoted(name, value)}" if value else f"#SBATCH --{name}"
        for name, value in options.items()
    ]
    lines: list[str] = []
    for line in template.splitlines():
        if line.startswith("#SBATCH"):
            lines += directives
            directives = []
        elif line.startswith("python="):
            lines.append(f"python={shlex.quote(python)}")
        elif line.startswith("arguments="):
            lines.append(f"arguments=({shlex.join(arguments)})")
        elif line.startswith("# site:"):
            lines += [text for text in site if text]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _quoted(name: str, value: str) -> str:
    """A value quoted for an #SBATCH line, where Slurm interprets quotes, backslashes, spaces and #."""
    if re.search(r"[\n\r\0]", value):
        raise InputError(f"{name}={value!r}: write it as one line; it becomes a line of the job's script")
    if re.search(r"[\s\"'\\#]", value) is None:
        return value
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def _import_path(root: Path) -> str:
    return f'export PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"'


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
    ("gres", "cluster.gpus_per_node (none: where Slurm has no GRES) or cluster.gres"),
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
        partition = re.search(r"^#SBATCH --partition=(\S+)", script, re.MULTILINE)
        away = _away(partition.group(1)) if partition and _AWAY in str(error) else ""
        if not away:
            raise
        tell(f"{away}: the job waits while too few nodes are left")


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
        reason = refusal(done.stderr)
        raise (ScalingError if _LATE in reason.lower() else InputError)(reason)
    return done.stdout


def _without_options(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Leave out variables that would override the script's options (sbatch's INPUT ENVIRONMENT VARIABLES)."""
    options = set(re.findall(r"^#SBATCH --([\w-]+)", script, re.MULTILINE))
    overriding = {f"SBATCH_{name.upper().replace('-', '_')}" for name in options}
    overriding |= {variable for name in options for variable in _OTHERWISE.get(name, ())}
    return {name: value for name, value in environment.items() if name not in overriding | _BREAKING}


def refusal(stderr: str) -> str:
    """Slurm's message, and the key to change."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # The last line often only says that it failed, and the line before it says why.
    text = "; ".join(dict.fromkeys(re.sub(r"^(sbatch|allocation failure): (error: )?", "", x) for x in lines))
    key = next((key for word, key in _KEYS if word in text.lower()), None)
    return f"sbatch: {text or 'it failed and printed nothing'}" + (f" ({key})" if key else "")
