"""The run folder: every name from one class.

Needs the standard library alone, so that workers can use it; reading rank files into tables is `scaling.collect`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from scaling.errors import InputError


def default_folder(run_id: str) -> Path:
    """runs/<date>/<time>-<hash> of an id `<date>-<time>-<hash>`."""
    date, clock, salt = run_id.split("-")
    return Path("runs") / f"{date[:4]}-{date[4:6]}-{date[6:]}" / f"{clock}-{salt}"


class RunFolder:
    """Names of everything below RUN/."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        """The composed Hydra config."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """What was to run."""
        return self.path / "plan.json"

    @property
    def command(self) -> Path:
        """The commands that were executed, one a line."""
        return self.path / "command.txt"

    @property
    def job_script(self) -> Path:
        """What was handed to Slurm."""
        return self.path / "job.sbatch"

    @property
    def jobs(self) -> Path:
        """The Slurm jobs that were handed in for this run."""
        return self.path / "jobs.json"

    def job_log(self, job: str) -> Path:
        """What a Slurm job printed."""
        return self.path / f"slurm-{job}.out"

    @property
    def status(self) -> Path:
        """How each trial stands."""
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        """Held by the program that works on the run."""
        return self.path / ".lock"

    @property
    def analysis(self) -> Path:
        """The numbers others read."""
        return self.path / "analysis.json"

    @property
    def timeline(self) -> Path:
        """Typical steps in Chrome's trace format."""
        return self.path / "timeline.json"

    @property
    def report_html(self) -> Path:
        """The report as one page."""
        return self.path / "report.html"

    @property
    def report_txt(self) -> Path:
        """The report as in the terminal."""
        return self.path / "report.txt"

    @property
    def report_md(self) -> Path:
        """The report for a pull request."""
        return self.path / "report.md"

    @property
    def wandb(self) -> Path:
        """Parent of the offline W&B runs."""
        return self.path

    @property
    def comparison(self) -> Path:
        """Comparison of the runs below (multirun folders)."""
        return self.path / "comparison.json"

    @property
    def baseline(self) -> Path:
        """Of which machine and work a kept run is the baseline (scaling/baselines.py)."""
        return self.path / "baseline.json"

    @property
    def comparison_html(self) -> Path:
        """The same as one page."""
        return self.path / "comparison.html"

    @property
    def comparison_md(self) -> Path:
        """The same for a pull request."""
        return self.path / "comparison.md"

    @property
    def doctor(self) -> Path:
        """What `scaling doctor` found."""
        return self.path / "doctor.json"

    @property
    def largest(self) -> Path:
        """The largest batches that fit, and what was tried to find them."""
        return self.path / "largest.json"

    def search(self, index: int) -> LaunchFolder:
        """One launch of the search for the largest batch."""
        return LaunchFolder(self.path / "search" / str(index), index)

    def table(self, name: str) -> Path:
        """A derived table: steps, buckets, fabric or blocks."""
        return self.path / f"{name}.parquet"

    def launch(self, index: int) -> LaunchFolder:
        """One torchrun launch."""
        return LaunchFolder(self.path / "launches" / str(index), index)

    def launches(self) -> list[LaunchFolder]:
        """Those that exist, in order."""
        parent = self.path / "launches"
        if not parent.is_dir():
            return []
        return [self.launch(i) for i in sorted(int(p.name) for p in parent.iterdir() if p.name.isdigit())]

    def require(self) -> RunFolder:
        """Return the run's folder, or an own loop's, that this is or is a file of; InputError otherwise."""
        if self.path.is_file() and self.path.parent != self.path:
            return RunFolder(self.path.parent).require()
        runs = sorted(path.parent for path in self.path.glob("*/plan.json") if path.parent.name.isdigit())
        if runs and not self.plan.is_file():
            named = ", ".join(map(str, runs[:3])) + (", ..." if len(runs) > 3 else "")
            raise InputError(f"{self.path}: several runs (a multirun); name one of {named}")
        if not self.plan.is_file() and not any(self.path.glob("launches/*/rank-*.jsonl")):
            what = (
                "no such folder"
                if not self.path.exists()
                else "not a run: it has no plan.json and no records"
            )
            raise InputError(f"{self.path}: {what}; name a folder that `scaling run` or a Probe made")
        return self

    def is_own(self) -> bool:
        """Whether the folder is this user's, to be written to without being asked."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_uid == os.geteuid() and os.access(self.path, os.W_OK)
        return False

    def require_own(self) -> RunFolder:
        """Return self when this user alone can have made it; InputError otherwise.

        For what starts or ends something on a folder's word: its plan names the code that is run.
        """
        for path in (self.path, self.config, self.plan, self.analysis, self.job_script, self.jobs):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid != os.geteuid():
                    raise InputError(
                        f"{path}: belongs to another user, and what it says would be run as you; "
                        "look through it, then go on with a copy of your own"
                    )
                if status.st_mode & 0o002:
                    raise InputError(
                        f"{path}: everybody can write to it, and what it says would be run as you; "
                        f"look through it, then `chmod -R o-w {self.path}`"
                    )
        return self


class LaunchFolder:
    """Names of everything below RUN/launches/<k>/."""

    def __init__(self, path: Path, index: int) -> None:
        self.path = path
        self.index = index

    def rank(self, rank: int) -> Path:
        """The records of one rank."""
        return self.path / f"rank-{rank}.jsonl"

    def env(self, rank: int) -> Path:
        """Versions, device and environment of one rank."""
        return self.path / f"env-{rank}.json"

    def error(self, rank: int) -> Path:
        """The exception that ended one rank."""
        return self.path / f"error-{rank}.json"

    def stack(self, rank: int) -> Path:
        """Where one rank was when it was told to end."""
        return self.path / f"stack-{rank}.json"

    def log(self, rank: int) -> Path:
        """Standard output and error of one rank."""
        return self.path / f"log-{rank}.txt"

    def nccl_log(self, host: str, process: str) -> Path:
        """NCCL's own words, of one process."""
        return self.path / f"nccl-{host}-{process}.txt"

    def nccl_logs(self) -> list[Path]:
        """All there are; else the ranks' logs, into which NCCL writes where it was told so by hand."""
        return sorted(self.path.glob("nccl-*.txt")) or sorted(self.path.glob("log-*.txt"))

    def agent_log(self, host: int) -> Path:
        """Standard output and error of one host's torchrun."""
        return self.path / f"torchrun-{host}.txt"

    @property
    def torchrun(self) -> Path:
        """Where torchruns keep what is their own; gone when the launch is over."""
        return self.path / "torchrun"

    @property
    def launcher_log(self) -> Path:
        """What the launcher itself printed: torchrun here, srun, or the emulated hosts' parent."""
        return self.path / "launcher.txt"

    @property
    def progress(self) -> Path:
        """Rank 0's word on how far it is."""
        return self.path / "progress.json"

    def memory(self, rank: int) -> Path:
        """Peak memory of one rank."""
        return self.path / f"memory-{rank}.json"

    def check(self, rank: int) -> Path:
        """What one rank found out about itself (`scaling doctor`)."""
        return self.path / f"check-{rank}.json"

    def roofline(self, rank: int) -> Path:
        """What one rank's device gives and the step asks for."""
        return self.path / f"roofline-{rank}.json"

    def telemetry(self, host: int) -> Path:
        """Samples of one host's state."""
        return self.path / f"telemetry-{host}.jsonl"

    @property
    def tries(self) -> Path:
        """Batches that rank 0 tried, a line before and a line after each."""
        return self.path / "tries.jsonl"

    @property
    def cases(self) -> Path:
        """How each case of the launch stands."""
        return self.path / "cases.json"

    def out_of_memory(self, world_size: int) -> Path:
        """There when a world size did not fit into some rank's memory."""
        return self.path / f"oom-{world_size}.json"

    @property
    def fabric(self) -> Path:
        """What the emulated network is made of."""
        return self.path / "network.json"
