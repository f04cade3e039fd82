"""Names of all files of a run folder, which run a path names, and whether this user may trust and change it.

Needs only the standard library, since workers use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from scaling.errors import InputError
from scaling.reading import as_number


def default_folder(run_id: str) -> Path:
    """runs/<date>/<time>-<hash>, from an id `<date>-<time>-<hash>`."""
    date, clock, salt = run_id.split("-")
    return Path("runs") / f"{date[:4]}-{date[4:6]}-{date[6:]}" / f"{clock}-{salt}"


class _Folder:
    path: Path


class _File:
    """An attribute of a folder: the path of one file in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: _Folder, _kind: type[_Folder]) -> Path:
        return folder.path / self._name


class _FileOf:
    """A method of a folder: the path of the file of one rank, host or the like."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __get__(self, folder: _Folder, _kind: type[_Folder]) -> Callable[[int | str], Path]:
        return lambda which: folder.path / self._pattern.format(which)


class RunFolder(_Folder):
    """Names of all files below RUN/."""

    config = _File("config.yaml")
    """The composed Hydra config."""
    plan = _File("plan.json")
    command = _File("command.txt")
    """The commands that were executed, one a line."""
    lock = _File(".lock")
    """Locked by the program that works on the run."""
    status = _File("status.json")
    """How each trial stands."""
    largest = _File("largest.json")
    """The largest batches that fit, and the tries that found them."""

    job_script = _File("job.sbatch")
    jobs = _File("jobs.json")
    """The Slurm jobs that were submitted for this run."""
    job_log = _FileOf("slurm-{}.out")
    """What the Slurm job of that id printed."""

    analysis = _File("analysis.json")
    """The results, which other programs read."""
    table = _FileOf("{}.parquet")
    """A derived table, such as `steps` or `blocks`."""
    timeline = _File("timeline.json")
    """Typical steps in Chrome's trace format."""
    report_html = _File("report.html")
    report_txt = _File("report.txt")
    """The report as the terminal shows it."""
    report_md = _File("report.md")
    """The report for a pull request."""

    comparison = _File("comparison.json")
    """Comparison of the runs in this folder (a multirun's)."""
    comparison_html = _File("comparison.html")
    comparison_md = _File("comparison.md")
    """The comparison for a pull request."""
    baseline = _File("baseline.json")
    """The machine and work for which a kept run is the baseline (scaling/records/baselines.py)."""
    study = _File("study.json")
    """A scaling study of the runs below this folder, or of runs elsewhere."""
    study_html = _File("study.html")
    started = _File("launch.json")
    """What `scaling launch` started, and how each launch ended."""
    doctor = _File("doctor.json")
    """What `scaling doctor` found."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def wandb(self) -> Path:
        """Parent of the folder with the offline W&B runs."""
        return self.path

    def search(self, index: int) -> LaunchFolder:
        """One launch of the search for the largest batch."""
        return LaunchFolder(self.path / "search" / str(index), index)

    def at_size(self, world_size: int) -> RunFolder:
        """The run at one world size of a script that `scaling launch` started."""
        return RunFolder(self.path / f"ranks-{world_size}")

    def log(self, index: int) -> LaunchFolder:
        """What one launch of a script printed."""
        return LaunchFolder(self.path / "logs" / str(index), index)

    def launch(self, index: int) -> LaunchFolder:
        """One torchrun launch."""
        return LaunchFolder(self.path / "launches" / str(index), index)

    def launches(self) -> list[LaunchFolder]:
        """All launches that exist, in order."""
        parent = self.path / "launches"
        if not parent.is_dir():
            return []
        numbers = (as_number(path.name) for path in parent.iterdir())
        return [self.launch(index) for index in sorted({i for i in numbers if i is not None})]


class LaunchFolder(_Folder):
    """Names of all files below RUN/launches/<k>/."""

    rank = _FileOf("rank-{}.jsonl")
    env = _FileOf("env-{}.json")
    """Versions, device and environment of rank 0."""
    envs = _FileOf("envs-{}.jsonl")
    """Environments of the other ranks of one host, a line each."""
    failed = _File("failed")
    """Exists once a rank has failed, so that no list of all files has to be read to see it."""
    error = _FileOf("error-{}.json")
    """The exception that ended one rank."""
    stack = _FileOf("stack-{}.json")
    """The stack of one rank when it was told to end."""
    log = _FileOf("log-{}.txt")
    """Standard output and error of one rank."""
    memories = _FileOf("memories-{}.jsonl")
    """Memory that each rank of one host held, a line each."""
    check = _FileOf("check-{}.json")
    """What one rank found in a checkup (`scaling doctor`)."""
    roofline = _FileOf("roofline-{}.json")
    kernels = _FileOf("kernels-{}.json")
    """What one rank's device can do, and what the step asks of it."""

    telemetry = _FileOf("telemetry-{}.jsonl")
    """Samples of one host's sensors."""
    pulse = _FileOf("pulse-{}.json")
    """What the ranks of one host have done so far."""
    agent_log = _FileOf("torchrun-{}.txt")
    """Standard output and error of one host's torchrun."""
    out_of_memory = _FileOf("oom-{}.json")
    """Exists where a world size did not fit into some rank's memory."""

    torchrun = _File("torchrun")
    """Scratch folder of the torchruns, removed when the launch is over."""
    scratch = _FileOf("torchrun/scratch-{}")
    """Link to the temporary folder of one rank and its data workers, removed with it."""
    launcher_log = _File("launcher.txt")
    """Standard output and error of the launcher: torchrun here, srun, or the emulated hosts' parent."""
    progress = _File("progress.json")
    """How far the launch is, written by rank 0."""
    tries = _File("tries.jsonl")
    """Batches that rank 0 tried, with a line before and a line after each."""
    content = _File("content.json")
    """What the launch measures, where its budget holds less than the plan says."""
    cases = _File("cases.json")
    fabric = _File("network.json")
    """Hosts and links of the emulated network."""

    def __init__(self, path: Path, index: int) -> None:
        self.path = path
        self.index = index

    def ranks(self) -> list[int]:
        """The ranks that left a file of records, in order."""
        matches = (
            re.fullmatch(r"rank-(0|[1-9][0-9]{0,8})\.jsonl", path.name) for path in self.path.glob("rank-*")
        )
        return sorted(int(match[1]) for match in matches if match)

    def nccl_log(self, host: str, process: str) -> Path:
        return self.path / f"nccl-{host}-{process}.txt"

    def nccl_logs(self) -> list[Path]:
        """NCCL's logs; without them the ranks' logs, into which NCCL writes where its variables were set by hand."""
        return sorted(self.path.glob("nccl-*.txt")) or sorted(self.path.glob("log-*.txt"))


LATEST = "latest"
"""Stands for the run that began last, wherever a run's folder is expected."""


def named(path: Path | str, root: Path = Path("runs")) -> Path:
    """The path that names a run. LATEST is the newest below `root`, where folders are named <date>/<time>-<hash>."""
    path = Path(path)
    if str(path) != LATEST or path.exists():
        return path
    days = sorted(root.glob("[0-9]*-[0-9]*-[0-9]*"), reverse=True)
    runs = [path for day in days for path in sorted(day.iterdir(), reverse=True) if _holds_run(path)]
    if not runs:
        raise InputError(f"{root.absolute()}: no runs here; name the folder of a run")
    return runs[0]


def _holds_run(path: Path) -> bool:
    """Whether a folder is a run, or holds those of a multirun or of `scaling launch`."""
    folder = RunFolder(path)
    signs = (folder.plan, folder.started, path / "launches", path / "0" / "plan.json")
    return path.is_dir() and any(sign.exists() for sign in signs)


def find_run(path: Path | str) -> RunFolder:
    """The run, or own loop's run, whose folder or file `path` is, or LATEST; InputError where it is neither."""
    folder = RunFolder(named(path))
    if folder.path.is_file():
        try:
            return find_run(folder.path.parent)
        except InputError as error:
            raise InputError(f"{folder.path}: is a file; {error}") from error
    runs = sorted(p.parent for p in folder.path.glob("*/plan.json") if as_number(p.parent.name) is not None)
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
        exists = folder.path.exists()
        what = "not a run: it has no plan.json and no records" if exists else "no such folder"
        raise InputError(f"{folder.path}: {what}; name a folder that `scaling run` or a Probe made")
    return folder


def is_own(folder: RunFolder) -> bool:
    """Whether the folder belongs to this user and can be written to."""
    with contextlib.suppress(OSError):
        return folder.path.stat().st_uid == os.geteuid() and os.access(folder.path, os.W_OK)
    return False


def require_own(folder: RunFolder, *also: Path) -> RunFolder:
    """Return the folder where only this user can have written or moved it; InputError otherwise.

    A run's plan names code that is then run, so verbs that start or end something check this first. Whoever owns a
    folder above it or a link on the way to it, or may write there, can put another run in its place; root and those
    who share a group are trusted. `also`: what else is used, beside the run's documents and the folders in it.
    """
    files = [folder.config, folder.plan, folder.analysis, folder.job_script, folder.jobs, *also]
    files += (path for path in folder.path.glob("*") if path.is_dir())  # a launch writes and compiles there
    links = (step for path in files if path.is_symlink() for step in _way_to(path))
    above = [*_way_to(folder.path), *(step for step in links if step != folder.path.absolute())]
    for path in (folder.path, *files, *above):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat() if path in above else path.stat()
            named_code = "code that it names" if path not in above else f"code that {folder.path} names"
            if status.st_uid != os.geteuid() and not (path in above and status.st_uid == 0):
                raise InputError(
                    f"{path}: belongs to another user, and {named_code} would run as you; "
                    "look through it, then go on with a copy in a folder of your own"
                )
            link = stat.S_ISLNK(status.st_mode)  # whose own mode says nothing
            shared = path in above and status.st_mode & stat.S_ISVTX  # as /tmp: nobody moves what others own
            if status.st_mode & stat.S_IWOTH and not shared and not link:
                remedy = f"chmod -R o-w {folder.path}" if path not in above else f"chmod o-w {path}"
                raise InputError(
                    f"{path}: everybody can write to it, and {named_code} would run as you; "
                    f"look through it, then `{remedy}`"
                )
    return folder


def _way_to(path: Path) -> list[Path]:
    """All folders and links that the system passes on its way to a path, those of links within links too."""
    way, left = [Path("/")], [*path.absolute().parts[1:]]
    at = way[0]
    while left and len(way) < 1000:  # links may lead in a circle
        part = left.pop(0)
        at = at.parent if part == ".." else at / part
        if at.is_symlink():
            way.append(at)
            target = at.readlink()
            at, left = at.parent, [*target.parts, *left]
        elif left:
            way.append(at)
    return way
