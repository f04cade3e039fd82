"""`scaling trace`: what profilers and recorders beside a training wrote."""

from __future__ import annotations

import importlib
from argparse import Namespace
from pathlib import Path

from scaling.cli.output import print_json, say
from scaling.cli.verbs.arguments import count, split
from scaling.errors import InputError, ScalingError
from scaling.reading import as_number
from scaling.traces import kinds
from scaling.traces.how import HOW
from scaling.traces.profiler.files import read_all

_ANALYSIS = "scaling.traces.profiler.summary"
_PAGES = ("scaling.cli.reporting", "scaling.cli.trace_folder")


def main(arguments: list[str]) -> int:
    """Exit status 3 when ranks are missing, 1 when no file could be read. `--json` alone writes no folder."""
    paths, given = split("trace", arguments)
    if given.how:
        say(*HOW)
        return 0
    count("trace", paths, least=1, most=100_000, of="traces or folders (--how says how to get them)")
    batch = _batch(given.batch)
    kind, files = kinds.find(paths)
    if kind == kinds.PROFILER:
        if given.beside:
            raise InputError(
                "--beside: records of NCCL Inspector are expected with it; these are profiler traces"
            )
        return _profiled(files, given, batch)
    unused = next(
        (f"--{name}" for name in ("hta", "out", "batch", "name", "wandb") if getattr(given, name)), None
    )
    if unused:
        raise InputError(f"{unused}: is for traces of the profiler; these are {kinds.NAMES[kind]}")
    return _recorded(kind, files, given)


def _recorded(kind: str, files: list[Path], given: Namespace) -> int:
    """What a recorder wrote; prints and writes no folder."""
    if kind == kinds.FLIGHT:
        from scaling.traces.recorders.hang import flight_recorder  # noqa: PLC0415  scipy is slow to import

        if given.beside:
            raise InputError("--beside: records of NCCL Inspector are expected with it; these are dumps")
        found = flight_recorder(files)
    else:
        from scaling.traces.recorders.inspected import inspector  # noqa: PLC0415

        found = inspector(files, Path(given.beside) if given.beside else None)
    if given.json:
        print_json(found.document)
    else:
        say(*found.lines)
    return 0 if found.complete else 3


def _profiled(files: list[Path], given: Namespace, batch: int | None) -> int:
    pages = not given.json or given.out is not None
    found, problems = read_all(files, with_hta=given.hta, meanwhile=lambda: _load(pages=pages))
    if not found:
        raise ScalingError(
            f"none of {len(files)} files can be used: "
            + "; ".join(f"{p.path}: {p.why}" for p in problems[:3])
            + ("" if len(problems) <= 3 else f"; and {len(problems) - 3} more")
        )
    from scaling.traces.profiler.summary import analyse  # noqa: PLC0415  after the processes that read: scipy has threads

    name = given.name or "trace"
    analysis, plan, drawn = analyse(found, problems, batch=batch, name=name, with_hta=given.hta)
    code = 0 if not problems and all(t.status == "done" for t in analysis.trials) else 3
    if given.json:
        print_json(analysis)
    if not pages:
        return code
    from scaling.cli.reporting import log_to_wandb, print_report  # noqa: PLC0415
    from scaling.cli.trace_folder import write_folder  # noqa: PLC0415  plotly is slow to import

    folder = write_folder(analysis, plan, drawn, given.out)
    if not given.json:
        print_report(folder, analysis, plan, verbose=given.verbose)
    if given.wandb:
        log_to_wandb(folder, plan, analysis)
    return code


def _load(*, pages: bool) -> None:
    """Import the modules that are needed after reading: that takes as long as reading a file of many events."""
    for name in (_ANALYSIS, *(_PAGES if pages else ())):
        importlib.import_module(name)


def _batch(text: str | None) -> int | None:
    if text is None:
        return None
    batch = as_number(text)
    if not batch:
        raise InputError(f"--batch {text}: the samples of a rank and step are expected, such as --batch 32")
    return batch
