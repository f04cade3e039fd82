"""`scaling trace`: what profilers and recorders beside a training wrote, as a report and its folder without records."""

from __future__ import annotations

import importlib
import shlex
from argparse import Namespace
from pathlib import Path

from scaling.analysis.results import Analysis, Timeline
from scaling.cli.output import print_json, say
from scaling.cli.verbs.arguments import count, split
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import check_folder
from scaling.reading import as_number
from scaling.records.files import make_folder, write_json
from scaling.records.paths import RunFolder, default_folder
from scaling.report.documents.run import publish
from scaling.settings.plan import Plan
from scaling.traces import kinds
from scaling.traces.kinds import HOW
from scaling.traces.profiler.read import read_all

_LATER = ("scaling.traces.profiler.summary", "scaling.cli.measuring")
"""Modules that are needed after reading: importing them takes as long as reading a file of many events."""


def main(arguments: list[str]) -> int:
    """Exit status 3 when ranks are missing, 1 when no file could be read. `--json` alone writes no folder."""
    paths, given = split("trace", arguments)
    if given.how:
        say(*HOW)
        return 0
    count("trace", paths, least=1, most=100_000, what="traces or folders (--how says how to get them)")
    batch = _batch(given.batch)
    kind, files = kinds.find(paths)
    if kind == kinds.PROFILER:
        if given.beside:
            raise InputError(
                "--beside: records of NCCL Inspector are expected with it; these are profiler traces"
            )
        return _profiled(files, given, batch)
    if kind == kinds.FLIGHT:
        raise InputError(_flight(files[0]))
    if kind == kinds.LOG and given.beside:
        raise InputError("--beside: records of NCCL Inspector are expected with it; this is a job's output")
    unused = next((f"--{name}" for name in ("out", "batch", "name", "wandb") if getattr(given, name)), None)
    if unused:
        raise InputError(f"{unused}: is for traces of the profiler; these are {kinds.NAMES[kind]}")
    if kind == kinds.LOG:
        from scaling.traces.job_log import read_job_logs  # noqa: PLC0415  what it imports is slow

        told = read_job_logs(files)
    else:
        from scaling.traces.inspector import inspector  # noqa: PLC0415  scipy is slow to import

        told = inspector(files, Path(given.beside) if given.beside else None)
    if given.json:
        print_json(told.document)
    else:
        say(*told.lines)
    return 0 if told.complete else 3


def _flight(path: Path) -> str:
    prefix = path.name.removesuffix(".json").rstrip("0123456789")
    command = shlex.join(["torchfrtrace", "--prefix", prefix, str(path.parent)])
    # The folder stands in the command alone: a longer line would be printed without its middle.
    return f"{path.name}: a dump of PyTorch's flight recorder; torch's command reads all ranks' pickles: {command}"


def _profiled(files: list[Path], given: Namespace, batch: int | None) -> int:
    pages = not given.json or given.out is not None or given.wandb
    traces, problems = read_all(files, meanwhile=lambda: [importlib.import_module(name) for name in _LATER])
    if not traces:
        raise ScalingError(
            f"none of {len(files)} files can be used: "
            + "; ".join(f"{p.path}: {p.why}" for p in problems[:3])
            + ("" if len(problems) <= 3 else f"; and {len(problems) - 3} more")
        )
    from scaling.traces.profiler.summary import analyse  # noqa: PLC0415  after the processes that read: scipy has threads

    name = given.name or "trace"
    analysis, plan, drawn = analyse(traces, problems, batch=batch, name=name)
    code = 0 if not problems and all(t.status == "done" for t in analysis.trials) else 3
    if given.json:
        print_json(analysis)
    if not pages:
        return code
    from scaling.cli.measuring import log_to_wandb, print_report  # noqa: PLC0415

    folder = write_folder(analysis, plan, drawn, given.out)
    if not given.json:
        print_report(folder, analysis, plan, verbose=given.verbose)
    if given.wandb:
        log_to_wandb(folder, plan, analysis)
    return code


def _batch(text: str | None) -> int | None:
    if text is None:
        return None
    batch = as_number(text)
    if not batch:
        raise InputError(f"--batch {text}: the samples per rank and step are expected, such as --batch 32")
    return batch


def write_folder(analysis: Analysis, plan: Plan, drawn: tuple[Timeline, ...], path: str | None) -> RunFolder:
    """Write plan.json, analysis.json, timeline.json and the reports. InputError where the folder cannot be written."""
    folder = check_folder(Path(path) if path else default_folder(plan.id))
    make_folder(folder.path, str(folder.path))
    write_json(folder.plan, plan)
    write_json(folder.analysis, analysis)
    publish(folder, analysis, plan, drawn)
    return folder
