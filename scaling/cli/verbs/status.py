"""`scaling status`: print the state of a submitted run."""

from __future__ import annotations

from pathlib import Path

from scaling.cli.analysing import analyse
from scaling.cli.output import say
from scaling.cli.queue import job_line, launch_line, trial_lines
from scaling.cli.verbs.arguments import parse
from scaling.launchers.jobs import begun
from scaling.launchers.slurm.ending import settle
from scaling.launchers.slurm.standing import Standing, standing


def main(arguments: list[str]) -> int:
    """Print the state of a run, or of each run of a multirun's folder. The exit status is 0."""
    paths, _ = parse("status", arguments)
    for plan, folder in begun(Path(paths[0])):
        say(*lines(settle(standing(folder, plan), analyse)))
    return 0


def lines(stands: Standing) -> list[str]:
    """The state of a run: its job, its launch and its trials."""
    said = [f"# {stands.folder.path}: {stands.plan.spec.model.name} on {stands.plan.spec.topology.name}"]
    if stands.job is None:
        said.append("no job was submitted for it")
    else:
        said.append(job_line(stands.job.id, stands.state, stands.ahead))
        log = stands.folder.job_log(stands.job.id)
        if log.is_file():
            said.append(f"log: {log}")
    progress = launch_line(stands.status, stands.progress)
    return [*said, *([progress] if progress else []), *trial_lines(stands.status)]
