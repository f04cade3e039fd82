"""The script of a Slurm job: slurm/job.sbatch with directives, interpreter and arguments filled in. No I/O."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

from scaling.errors import InputError
from scaling.records.paths import RunFolder
from scaling.spec.batch_search import LAUNCHES_MAX, PROOFS_MAX
from scaling.spec.plan import Plan
from scaling.spec.startup import joining, start_limit_s
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
    for name in ("partition", "account", "qos", "constraint", "reservation", "gres"):
        if getattr(cluster, name) is not None:
            options[name] = getattr(cluster, name)
    if cluster.gpus_per_node is not None or (topology.accelerated and cluster.gres is None):
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
    for name in ("partition", "account", "qos", "reservation"):
        if getattr(cluster, name) is not None:
            options[name] = getattr(cluster, name)
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
    """Why the job's own time limit cannot hold the budget; None where it can.

    InputError where nothing can be measured before Slurm's signal.
    """
    cluster, limit = plan.spec.cluster, limit_s(plan)
    warned = cluster.signal_s + EARLY_S if cluster.signal_s else 0
    before = limit - warned
    budget = (plan.spec.measure.longest_s + joining(plan).high_s) * plan.spec.repeats
    if cluster.time is None or before >= budget:
        return None
    would = f"cluster.time={minutes(plan)} holds all of it"
    told = (
        f"up to {warned} s before its limit (cluster.signal_s={cluster.signal_s}, and Slurm's own {EARLY_S})"
    )
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
