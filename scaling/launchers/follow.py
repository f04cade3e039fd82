"""Start a launch, follow it, and make sure that it ends."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from scaling.launchers.failure import workers
from scaling.launchers.failure.cause import LaunchOutcome, cause, last_error
from scaling.launchers.failure.evidence import gather
from scaling.launchers.launcher import Command, Progress
from scaling.launchers.process import end, held_back, start
from scaling.launchers.slurm.allocation import interruption
from scaling.launchers.vigil import Vigil
from scaling.reading import LOG_BYTES_MAX, RefusedError, read_text
from scaling.records.files import write_json
from scaling.records.paths import LaunchFolder
from scaling.spec.run import Measure

POLL_S = 0.2
MISSING_S = 40
"""How long a rank may be gone while others go on. torchrun ends the others within 30 s when it notices."""
CALL_S = 1.0
"""Between two looks at the list of processes."""
LINGER_S = 4
"""How long the other ranks may take to end after one failed; they look for a failure every 2 s."""


def follow(command: Command, launch: LaunchFolder, measure: Measure, progress: Progress) -> LaunchOutcome:
    """Run one launch to its end. Ctrl-C ends it in order; no process is left running in any case."""
    if command.network is not None:
        write_json(launch.fabric, command.network, private=True)
    process = None
    try:
        with held_back():
            process = start(command, launch)
        vigil = Vigil(
            launch,
            time.monotonic(),
            hosts=command.hosts,
            timeout_s=measure.step_timeout_s,
            start_s=max(measure.start_timeout_s, command.start_s),
            progress=progress,
        )
        silent_s, missing = _wait(process, launch, vigil)
        alone = process.poll()
        left = workers.end(launch) if alone is None else []
    except KeyboardInterrupt as stop:
        if process is not None:
            end(process)  # first, because asking Slurm for the reason can take a minute
        return LaunchOutcome(status="interrupted", error=interruption(stop))
    finally:
        if process is not None:
            end(process)
        _remove_scratch(launch)
    if process.returncode == 0 and not left:
        return LaunchOutcome(status="done")
    if alone == -signal.SIGKILL:  # the ranks that it took along only report lost connections
        return LaunchOutcome(status="failed", error=last_error(launch, alone))
    node = command.blamed(_text(launch.launcher_log)) if command.blamed else None
    if node is not None:  # the ranks then only report lost connections
        return LaunchOutcome(status="failed", error=node)
    ranks = dict(enumerate(command.ranks))
    told = frozenset(ranks.get(worker.rank, worker.rank) for worker in left)
    stopped = frozenset(ranks.get(worker.rank, worker.rank) for worker in left if worker.stopped)
    gone = frozenset(ranks.get(rank, rank) for rank in missing)
    seen = gather(launch, told=told, stopped=stopped, missing=gone, silent_s=silent_s, ranks=ranks)
    return cause(seen, launch) or LaunchOutcome(status="failed", error=last_error(launch, process.returncode))


def _remove_scratch(launch: LaunchFolder) -> None:
    """Remove the launch's scratch folder, and what ranks that were killed left in the temporary folder of this host."""
    for link in launch.torchrun.glob(launch.scratch("*").name):
        with contextlib.suppress(OSError):
            left = link.readlink()
            if left.name.startswith("pymp-") and left.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(launch.torchrun, ignore_errors=True)


def _wait(
    process: subprocess.Popen[bytes], launch: LaunchFolder, vigil: Vigil
) -> tuple[float, frozenset[int]]:
    """Wait until the process ends, a rank failed and the others linger, a rank is missing, or progress stops.

    Returns how long there was no progress (s; 0 in all other cases) and the missing ranks, as torchrun numbers them.
    """
    complete = called = time.monotonic()
    failed, roll = float("inf"), workers.Roll(launch)
    while process.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        # Until rank 0's first record: all ranks are there then, and measuring begins.
        if not vigil.begun and now - called > CALL_S:
            roll.call()
            called = now
        vigil.listen(now)
        if failed == float("inf") and launch.failed.exists():
            failed = now
        if now - failed > LINGER_S:
            return 0.0, frozenset()
        missing = roll.missing()
        complete = complete if missing else now
        if now - complete > MISSING_S:
            roll.call()  # the process that was noted may have been a child of the rank
            missing = roll.missing()
            if missing:
                return 0.0, missing
            complete = now
        if vigil.silent_s(now) > vigil.patience_s(now):
            return vigil.silent_s(now), missing
    return 0.0, frozenset()


def _text(path: Path) -> str:
    """The text of a log; empty where there is none."""
    with contextlib.suppress(OSError, RefusedError):
        return read_text(path, LOG_BYTES_MAX, strict=False)
    return ""
