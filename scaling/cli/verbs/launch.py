"""`scaling launch`: one's own script under torchrun at several world sizes, launches in turns, ending in a study."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scaling.cli.measuring import end_in_order
from scaling.cli.output import say, warn
from scaling.cli.verbs.arguments import split
from scaling.config.compose import cut, overrides, requests, script_name
from scaling.errors import InputError, ScalingError
from scaling.launchers.follow import ScriptEnd, command_of, run_script
from scaling.launchers.jobs import check_folder, launcher_of, plan_request
from scaling.launchers.launcher import describe
from scaling.reading import RefusedError, read_tail, read_text
from scaling.records.files import make_folder, write_json, write_text
from scaling.records.paths import RunFolder, default_folder
from scaling.records.run import STARTED_SCHEMA, ScriptLaunch, Started
from scaling.settings.environment import without_secrets
from scaling.settings.plan import Plan
from scaling.units import format_duration, ranks

TIME_LIMIT_S = 3600.0
HOOKED = ("-m", "scaling.worker.probe.hooked")
"""Runs a script that has no line of a Probe."""
PLAIN_STEPS = b'"arm":"plain"'
SPAWNS = "the script starts its own ranks"
"""What it says of a script that would do so in each rank."""


def main(arguments: list[str]) -> int:
    """Launch the script at every world size, as often as `repeats` says, and make a study of what was measured."""
    end_in_order()
    ours, script = cut(arguments)
    rest, given = split("launch", ours)
    limit_s = _limit(given.time_limit)
    asked = requests("launch", overrides(rest, given.world_sizes))
    if not asked.items:
        return 0
    if asked.multirun:
        raise InputError("scaling launch --multirun: there is no multirun of a script; call it for each")
    name = script_name(script)
    request = asked.items[0]
    plan = plan_request(request)
    fresh = None if given.fresh is None else Path(given.fresh)
    if fresh is not None and fresh.is_dir() and any(fresh.iterdir()):
        raise InputError(f"--fresh {fresh}: is not empty; a folder that does not exist yet is expected")
    if len(set(plan.spec.world_sizes)) < 2:
        raise InputError(
            f"--world-sizes {plan.spec.world_sizes[0]}: two world sizes or more are expected, such as 1,2"
        )
    launcher_of(plan).require(plan)
    folder = check_folder(request.run_dir or default_folder(plan.id))
    make_folder(folder.path, f"run_dir={folder.path}")
    started = Started(
        schema=STARTED_SCHEMA,
        id=plan.id,
        created=plan.created,
        version=plan.version,
        topology=plan.spec.topology,
        script=without_secrets(script),
        probe=not given.no_probe,
        world_sizes=plan.spec.world_sizes,
        repeats=plan.spec.repeats,
    )
    started = _launched(plan, folder, started, script, limit_s, name=name, fresh=fresh)
    return _finish(folder, started, verbose=given.verbose)


def _limit(asked: str | None) -> float:
    try:
        limit_s = TIME_LIMIT_S if asked is None else float(asked)
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise InputError(f"--time-limit {asked}: seconds are expected, such as 600")
    return limit_s


def _launched(
    plan: Plan,
    folder: RunFolder,
    started: Started,
    script: Sequence[str],
    limit_s: float,
    *,
    name: str,
    fresh: Path | None,
) -> Started:
    """All launches, in turns: 1, 2, 4, 1, 2, 4. A world size that failed is not launched again.

    Nor is anything once a launch that ended well has recorded nothing: the others would do alike.
    """
    if fresh is not None and script[0] != "-m":
        script = [str(Path(script[0]).absolute()), *script[1:]]
    program = (*(() if started.probe else HOOKED), *script)
    turns = [n for _ in range(started.repeats) for n in started.world_sizes]
    for index, n in enumerate(turns):
        if any(launch.world_size == n and launch.status != "done" for launch in started.launches):
            continue
        say(f"# launch {index + 1} of {len(turns)}: {name} at {ranks(n)}", file=sys.stderr)
        begin = time.monotonic()
        before = _rank_files(folder, n)
        ended = _launch(plan, folder, index, n, program, limit_s, fresh)
        took_s = time.monotonic() - begin
        if not folder.path.is_dir():
            raise ScalingError(f"{folder.path}: was removed while {name} ran; nothing of it is left")
        nothing = ended.status == "done" and _rank_files(folder, n) == before
        if nothing:
            ended = dataclasses.replace(
                ended, status="failed", error=_recorded_nothing(folder, index, started)
            )
        elif ended.status == "done":
            say(f"#   done in {format_duration(took_s)}", file=sys.stderr)
        launch = ScriptLaunch(
            index=index,
            world_size=n,
            duration_s=round(took_s, 1),
            status=ended.status,
            error=ended.error,
            rank=ended.rank,
        )
        started = dataclasses.replace(started, launches=(*started.launches, launch))
        write_json(folder.started, started, private=True)
        if ended.status == "interrupted":
            break
        if ended.status != "done":
            _failed(folder, launch, ended, name)
        if nothing or SPAWNS in (ended.error or ""):
            break
    return started


def _launch(
    plan: Plan,
    folder: RunFolder,
    index: int,
    n: int,
    program: tuple[str, ...],
    limit_s: float,
    fresh: Path | None,
) -> ScriptEnd:
    logs = folder.log(index)
    logs.path.mkdir(parents=True)
    try:
        command = command_of(plan, folder, logs, n, program)
        earlier = read_text(folder.command, strict=False) if folder.command.exists() else ""
        write_text(folder.command, earlier + describe(command), private=True)
        if fresh is not None:
            make_folder(fresh / str(index), f"--fresh {fresh}")
            command = dataclasses.replace(command, cwd=str(fresh / str(index)))
        return run_script(command, logs, limit_s)
    except KeyboardInterrupt:
        return ScriptEnd(status="interrupted", error="interrupted")
    except InputError:
        raise
    except ScalingError as error:  # Slurm no longer answers; what was measured so far is still put together
        return ScriptEnd(status="failed", error=str(error))


STEPS_BYTES = 2**24
"""A longer rank file has many rounds, and steps without stamps among the last ones."""


def _rank_files(folder: RunFolder, n: int) -> set[Path]:
    """The ranks' files that have a step without stamps, which alone count as steps."""
    files = folder.at_size(n).path.glob("launches/*/rank-*.jsonl")
    return {path for path in files if PLAIN_STEPS in _end_of(path)}


def _end_of(path: Path) -> bytes:
    """The end of a file that the script may have replaced or removed; nothing where it is none."""
    try:
        return read_tail(path, STEPS_BYTES)
    except (OSError, RefusedError):
        return b""


def _recorded_nothing(folder: RunFolder, index: int, started: Started) -> str:
    """Why a script that ended well left no records: what the probe said, or what is missing."""
    if any(earlier.status == "done" for earlier in started.launches):
        return (
            f"launch {index + 1} trained 0 steps, or too few: does the script resume what an earlier launch saved? "
            "--fresh DIR gives each launch a working directory of its own"
        )
    if any(folder.path.glob("ranks-*/launches/*/rank-*.jsonl")):
        return "the training ended before a round of steps was whole; train for more steps (60 or more)"
    logs = folder.log(index)
    texts = [_end_of(path).decode(errors="replace") for path in sorted(logs.path.glob("*.txt"))]
    messages = [line for text in texts for line in text.splitlines() if "scaling: Probe: " in line]
    if messages:
        return messages[-1].partition("scaling: Probe: ")[2]
    if started.probe:
        return (
            "no Probe was opened, so nothing was recorded; put the two lines around the training "
            "(docs/own-script.md), or use --no-probe"
        )
    return "no training was seen, so nothing was recorded"


def _failed(folder: RunFolder, launch: ScriptLaunch, ended: ScriptEnd, name: str) -> None:
    """One line that says what failed, and the last lines of the rank that did."""
    rank = f"rank {ended.rank}: " if ended.rank is not None else ""
    logs = folder.log(launch.index).path
    warn(f"{name} at {ranks(launch.world_size)}: {rank}{ended.error} ({logs})")
    if ended.lines:
        say(*(f"  | {line}" for line in ended.lines), file=sys.stderr)


def _finish(folder: RunFolder, started: Started, *, verbose: bool) -> int:
    """The study of what was measured; the exit status."""
    from scaling.analysis.study.study import study_at  # noqa: PLC0415  polars and scipy are slow to import
    from scaling.cli.verbs.study import show_study  # noqa: PLC0415

    complete = all(launch.status == "done" for launch in started.launches)
    measured = sorted({run.world_size for run in started.launches if _rank_files(folder, run.world_size)})
    if not measured:
        why = started.launches[0].error if started.launches else "no launch was started"
        warn(f"{folder.path}: nothing was measured: {why}")
        return 3 if any(launch.status == "interrupted" for launch in started.launches) else 1
    if len(measured) < 2:
        warn(
            f"only world size {measured[0]} was measured, so there is no study; "
            f"`scaling analyze {folder.at_size(measured[0]).path}` reports it"
        )
        return 3
    code = show_study(*study_at(folder), verbose=verbose, into=folder)
    return code if complete else 3
