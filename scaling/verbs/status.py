"""`scaling status`: how a submitted run stands."""

from __future__ import annotations

from pathlib import Path

from scaling.report.queue import job_line, progress_line, trial_lines
from scaling.run import begun
from scaling.submit import Standing, settle, standing
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """Of one run, or of each run of a multirun's folder. Always 0."""
    paths, _ = parse("status", arguments, least=1, most=1)
    for plan, folder in begun(Path(paths[0])):
        print("\n".join(lines(settle(standing(folder, plan)))))
    return 0


def lines(stands: Standing) -> list[str]:
    """What is known of a run."""
    said = [f"# {stands.folder.path}: {stands.plan.spec.model.name} on {stands.plan.spec.topology.name}"]
    if stands.job is None:
        said.append("no job was submitted for it")
    else:
        said.append(job_line(stands.job.id, stands.state, stands.ahead))
        log = stands.folder.job_log(stands.job.id)
        if log.is_file():
            said.append(f"log: {log}")
    running = any(trial.status == "running" for trial in stands.status.trials)
    progress = progress_line(stands.progress, len(stands.status.launches)) if running else ""
    return [*said, *([progress] if progress else []), *trial_lines(stands.status)]
