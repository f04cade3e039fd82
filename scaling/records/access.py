"""Which run a path names, and whether this user may trust and change it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from scaling.errors import InputError
from scaling.reading import as_number
from scaling.records.paths import RunFolder

LATEST = "latest"
"""Stands for the run that began last, wherever a run's folder is expected."""


def named(path: Path | str, root: Path = Path("runs")) -> Path:
    """The path that names a run. LATEST is the newest below `root`, where folders are named <date>/<time>-<hash>."""
    path = Path(path)
    if str(path) != LATEST or path.exists():
        return path
    days = sorted(root.glob("[0-9]*-[0-9]*-[0-9]*"), reverse=True)
    found = [path for day in days for path in sorted(day.iterdir(), reverse=True) if _holds_run(path)]
    if not found:
        raise InputError(f"{root.absolute()}: no runs here; name the folder of a run")
    return found[0]


def _holds_run(path: Path) -> bool:
    """Whether a folder is a run, or holds those of a multirun or of `scaling launch`."""
    folder = RunFolder(path)
    own = (folder.plan, folder.started, path / "launches", path / "0" / "plan.json")
    return path.is_dir() and any(one.exists() for one in own)


def find_run(path: Path | str) -> RunFolder:
    """The run, or own loop's run, whose folder or file `path` is, or LATEST; InputError where it is neither."""
    folder = RunFolder(named(path))
    if folder.path.is_file():
        try:
            return find_run(folder.path.parent)
        except InputError as error:
            raise InputError(f"{folder.path}: is a file; {error}") from error
    runs = sorted(
        plan.parent for plan in folder.path.glob("*/plan.json") if as_number(plan.parent.name) is not None
    )
    if runs and not folder.plan.is_file():
        listed = ", ".join(map(str, runs[:3])) + (", ..." if len(runs) > 3 else "")
        raise InputError(f"{folder.path}: holds several runs (a multirun); name one of {listed}")
    if folder.started.is_file() and not folder.plan.is_file():
        below = ", ".join(str(run) for run in sorted(folder.path.glob("ranks-*")))
        raise InputError(
            f"{folder.path}: holds the runs of `scaling launch`; `scaling study {folder.path}` shows them together, "
            f"or name one of {below or 'them, of which none was measured'}"
        )
    if not folder.plan.is_file() and not any(folder.path.glob("launches/*/rank-*.jsonl")):
        there = folder.path.exists()
        what = "not a run: it has no plan.json and no records" if there else "no such folder"
        raise InputError(f"{folder.path}: {what}; name a folder that `scaling run` or a Probe made")
    return folder


def is_own(folder: RunFolder) -> bool:
    """Whether the folder belongs to this user and can be written to."""
    with contextlib.suppress(OSError):
        return folder.path.stat().st_uid == os.geteuid() and os.access(folder.path, os.W_OK)
    return False


def require_own(folder: RunFolder) -> RunFolder:
    """Return the folder where only this user can have written it; InputError otherwise.

    A run's plan names code that is then run, so verbs that start or end something check this first.
    """
    for path in (folder.path, folder.config, folder.plan, folder.analysis, folder.job_script, folder.jobs):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if status.st_uid != os.geteuid():
                raise InputError(
                    f"{path}: belongs to another user, and code that it names would run as you; "
                    "look through it, then go on with a copy of your own"
                )
            if status.st_mode & 0o002:
                raise InputError(
                    f"{path}: everybody can write to it, and code that it names would run as you; "
                    f"look through it, then `chmod -R o-w {folder.path}`"
                )
    return folder
