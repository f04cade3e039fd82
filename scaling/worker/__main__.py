"""`python -m scaling.worker RUN LAUNCH WORLD_SIZE,... [search|prove]`, started by torchrun on every rank."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from scaling.checkup import DOCTOR
from scaling.files import read_json, write_json
from scaling.largest import MEASURE
from scaling.plan import SCHEMA, Plan
from scaling.store import LaunchFolder, RunFolder
from scaling.worker.lookout import last_collective, watch
from scaling.worker.sampler import sampling


def main(arguments: list[str]) -> None:
    """Run this rank. An error is written down, told to the others, and ends the process at once."""
    run, index, sizes = RunFolder(arguments[0]), int(arguments[1]), [int(n) for n in arguments[2].split(",")]
    what = arguments[3] if len(arguments) > 3 else MEASURE
    folder = run.launch(index) if what == MEASURE else run.search(index)
    plan = read_json(run.plan, Plan, SCHEMA)
    # torchrun numbers host by host; where ranks go round the hosts ours differ, and torch takes them from here.
    rank = plan.spec.topology.started(int(os.environ["WORLD_SIZE"]))[int(os.environ["RANK"])]
    os.environ["RANK"] = str(rank)
    os.umask(os.umask(0o022) | 0o002)  # on a node that has its own
    _log_to(folder.log(rank))
    launch: Any = None
    leave = watch(folder, rank, lambda: launch.stage if launch else "start")
    first = os.environ["LOCAL_RANK"] == "0"
    with sampling(folder, plan.spec.topology.host_of(rank), first_on_host=first):
        try:
            if plan.spec.task == DOCTOR:  # torch takes seconds: only after the log is open
                from scaling.worker.checks.checkup import Checkup as Launch  # noqa: PLC0415
            else:
                from scaling.worker.launch import Launch  # type: ignore[assignment]  # noqa: PLC0415

            launch = Launch(plan, folder, tuple(t for t in plan.trials if t.world_size in sizes))
            if plan.spec.by_case:
                from scaling.worker.cases import run_cases  # noqa: PLC0415

                run_cases(launch, run, what)
            else:
                launch.run()
        except BaseException as error:  # noqa: BLE001  # whatever ends a rank has to be told
            try:
                traceback.print_exc()
                _report(error, rank, folder, launch)
            finally:
                leave(1)  # no clean-up that could wait for the others, even when nothing can be written


def _log_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _report(error: BaseException, rank: int, folder: LaunchFolder, launch: Any) -> None:
    """error-<r>.json: what, where in whose code, in which stage, and whether this rank was the first."""
    place = _place(error)
    record = {
        "rank": rank,
        "type": type(error).__name__,
        "message": str(error).strip().split("\n")[0][:500],
        "file": place.filename if place else "",
        "line": place.lineno if place else 0,
        "stage": launch.stage if launch else "start",
        "collective": last_collective(),
        "traceback": traceback.format_exc(),
        "out_of_memory": _out_of_memory(error),
    }
    with contextlib.suppress(OSError):  # a full disk
        write_json(
            folder.error(rank), record
        )  # now: the store may be gone with its host, and telling take long
    if launch is None or launch.control.abort(record):
        write_json(folder.error(rank), {**record, "first": True})


def _out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return False
    from scaling.worker.memory import is_out_of_memory  # noqa: PLC0415

    return is_out_of_memory(error)


def _place(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame that is neither torch's nor, if there is another, the harness's own."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    own = [f for f in frames if "/scaling/worker/" not in f.filename and "/importlib/" not in f.filename]
    return next(reversed(own or frames), None)


if __name__ == "__main__":
    main(sys.argv[1:])
