"""The one reader of a run's own documents: its plan, its composed config, how it stands; and the lock on its folder.

The kernel locks a file in the folder (flock), so the lock ends with the program that holds it, however that ends, and
never has to be removed by hand. On NFS it holds between machines too where the server keeps locks. A machine that dies
then keeps it until the server's lease runs out (NFSv4, about a minute and a half), or until the machine is up again
(NFSv3's lockd, where only removing the file by hand helps). On a file system without locks a line says so, and the
program goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from scaling.errors import InputError, ScalingError
from scaling.plain import message
from scaling.reading import YAML_BYTES_MAX, RefusedError, read_text
from scaling.records import files
from scaling.records.decode import read_head
from scaling.records.files import read_json
from scaling.records.paths import RunFolder, find_run
from scaling.records.status import SCHEMA as STATUS_SCHEMA
from scaling.records.status import Status
from scaling.settings.batch_search import SCHEMA as LARGEST_SCHEMA
from scaling.settings.batch_search import Largest
from scaling.settings.plan import SCHEMA as PLAN_SCHEMA
from scaling.settings.plan import Ended, Plan
from scaling.settings.topology import Topology


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder; InputError where another program holds it, or where nothing can be written there."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(
            f"{folder.path}: cannot be written to ({error.strerror}); make it writable"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(descriptor)
            raise InputError(
                f"{folder.path}: another `scaling run` is working in it; wait for it to end, or name another folder "
                f"(if its machine died: rm {folder.lock})"
            ) from error
        print(
            message(
                f"scaling: {folder.path}: its file system keeps no locks ({error.strerror}); "
                "start no other program in this folder"
            ),
            file=sys.stderr,
        )
    try:
        yield
    finally:
        os.close(descriptor)


SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch(Ended):
    """One launch: done, failed, timeout or interrupted."""

    index: int
    world_size: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All launches of one script."""

    schema: int
    id: str
    created: str
    version: str
    topology: Topology
    script: tuple[str, ...]
    """The script and its arguments."""
    probe: bool
    """Whether the script opens a Probe; without, one is opened for it."""
    world_sizes: tuple[int, ...]
    repeats: int
    launches: tuple[ScriptLaunch, ...] = ()


def read_started(folder: RunFolder) -> Started | None:
    """launch.json; None where it is missing or damaged: every number can be made without it."""
    with contextlib.suppress(ScalingError):
        return read_json(folder.started, Started, SCHEMA)
    return None


def read_plan(folder: RunFolder) -> Plan:
    """The plan of a run, or the one that an own loop's records bring along; InputError where there is none."""
    if not find_run(folder.path).plan.is_file():
        found = own_plan(folder)
        if found is None:
            raise InputError(
                f"{folder.path}: there is no plan.json, and no rank file that begins with a plan; "
                "name a folder that `scaling run` or a Probe made"
            )
        return found
    return read_json(folder.plan, Plan, PLAN_SCHEMA)


def own_plan(folder: RunFolder) -> Plan | None:
    """The plan in the heads of an own loop's rank files, from its latest launch; None where none has one."""
    for launch in reversed(folder.launches()):
        for path in sorted(launch.path.glob("rank-*.jsonl")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                head = read_head(path)
                if head.plan is not None and head.plan.get("schema") == PLAN_SCHEMA:
                    return files.decode(Plan, head.plan)
    return None


def read_config(folder: RunFolder) -> str:
    """The text of a run's config.yaml; InputError where there is none, as beside traces and own loops."""
    if not folder.config.exists() and folder.path.exists():
        raise InputError(
            f"{folder.path}: the records of your own loop (a Probe) or of traces, which have no settings to change; "
            "name a run that `scaling run` made (it has a config.yaml)"
        )
    try:
        return read_text(folder.config, YAML_BYTES_MAX)
    except (OSError, RefusedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{folder.config}: cannot be read ({why}); overrides need it") from error


def read_status(folder: RunFolder) -> Status | None:
    """status.json; None where it is missing or damaged: every number can be made without it."""
    with contextlib.suppress(ScalingError):
        return read_json(folder.status, Status, STATUS_SCHEMA)
    return None


def read_largest(folder: RunFolder) -> Largest | None:
    """The result so far; None without `batch=max`, and before the search."""
    if not folder.largest.is_file():
        return None
    with contextlib.suppress(InputError):
        return read_json(folder.largest, Largest, LARGEST_SCHEMA)
    return None
