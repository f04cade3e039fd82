"""`python -m scaling.worker RUN LAUNCH WORLD_SIZE,... [search|prove]`, started by torchrun on every rank."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import sys
import traceback
from typing import TYPE_CHECKING

from scaling.errors import InputError
from scaling.reading import open_to_write
from scaling.records.checkup import DOCTOR
from scaling.records.encoding import digest, digest_of
from scaling.records.files import read_json, write_json
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.settings.cases import MEASURE
from scaling.settings.plan import PLAN_DIGEST, SCHEMA, Plan
from scaling.worker.session.progress import sampling, share
from scaling.worker.session.stack_dump import last_collective, watch

if TYPE_CHECKING:  # importing torch takes seconds, so it comes after the log is open
    from scaling.worker.session.session import LaunchSession


def main(arguments: list[str]) -> None:
    """Run this rank. On an error, write it, tell the other ranks, and end the process at once."""
    run, index, sizes = RunFolder(arguments[0]), int(arguments[1]), [int(n) for n in arguments[2].split(",")]
    what = arguments[3] if len(arguments) > 3 else MEASURE
    folder = run.launch(index) if what == MEASURE else run.search(index)
    plan, plan_digest = read_json(run.plan, Plan, SCHEMA), digest(run.plan.read_bytes())
    if os.environ.get(PLAN_DIGEST, digest_of(plan)) != digest_of(plan):
        raise InputError(f"{run.plan}: was replaced after the launch began, and is not followed")
    # torchrun numbers ranks host by host. Where the topology deals ranks out to hosts in turn, ours differ from
    # torchrun's, and torch reads them from here.
    rank = plan.spec.topology.started(int(os.environ["WORLD_SIZE"]))[int(os.environ["RANK"])]
    os.environ["RANK"] = str(rank)
    os.umask(os.umask(0o022) | 0o002)  # a node may have another umask; others must not write
    with open_to_write(folder.log(rank), append=True, mode=0o644) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    session: LaunchSession | None = None
    leave = watch(folder, rank, lambda: session.stage if session else "start")
    if not plan.spec.compiles:  # torch makes its cache's folder when it is imported, and leaves it behind
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.torchrun.absolute() / "inductor"))
    if plan.spec.data.workers:
        # They inherit this folder. Who ends the launch removes it if this rank is killed.
        with contextlib.suppress(OSError):
            folder.scratch(rank).symlink_to(multiprocessing.util.get_temp_dir())
    share()
    first = os.environ["LOCAL_RANK"] == "0"
    with sampling(folder, plan.spec.topology.host_of(rank), first_on_host=first):
        try:
            from scaling.worker.session import session as opened  # noqa: PLC0415

            trials = tuple(t for t in plan.trials if t.world_size in sizes)
            session = opened.LaunchSession(plan, folder, trials, plan_digest)
            _run(session, run, what)
        except BaseException as error:  # noqa: BLE001  # whatever ends a rank has to be reported
            try:
                traceback.print_exc()
                _report(error, rank, folder, session)
            finally:
                leave(1)  # no clean-up that could wait for other ranks, even when nothing can be written


def _run(session: LaunchSession, run: RunFolder, what: str) -> None:
    """Run the program that the plan asks for."""
    if session.spec.task == DOCTOR:
        from scaling.worker.checks.checkup import Checkup  # noqa: PLC0415

        Checkup(session).run()
    elif session.spec.kind.by_cases:
        from scaling.worker.cases import run_cases  # noqa: PLC0415

        run_cases(session, run, what)
    else:
        from scaling.worker.session.launch import Launch  # noqa: PLC0415

        Launch(session).run()


def _report(error: BaseException, rank: int, folder: LaunchFolder, session: LaunchSession | None) -> None:
    """Write error-<r>.json: the error, its place, the stage, and whether this rank failed first."""
    place = _place(error)
    record = {
        "rank": rank,
        "type": type(error).__name__,
        "message": str(error).strip().split("\n")[0][:500],
        "file": place.filename if place else "",
        "line": place.lineno if place else 0,
        "stage": session.stage if session else "start",
        "collective": last_collective(),
        "traceback": traceback.format_exc(),
        "out_of_memory": _out_of_memory(error),
    }
    # Write before telling the others, which takes long where the store is gone with its host.
    with contextlib.suppress(OSError):  # the disk may be full
        write_json(folder.error(rank), record)
        folder.failed.touch()
    if session is None or session.control.abort(record):
        write_json(folder.error(rank), {**record, "first": True})


def _out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return False
    from scaling.worker.accelerator.memory import is_out_of_memory  # noqa: PLC0415

    return is_out_of_memory(error)


def _place(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame outside torch; one outside the harness if there is any."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    outside = [f for f in frames if "/scaling/worker/" not in f.filename and "/importlib/" not in f.filename]
    return next(reversed(outside or frames), None)


if __name__ == "__main__":
    main(sys.argv[1:])
