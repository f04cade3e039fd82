"""Write the folder of an analysis from traces: like a run's folder, but without records."""

from __future__ import annotations

from pathlib import Path

from scaling.analysis.results import Analysis, Timeline
from scaling.launchers.jobs import check_folder
from scaling.records.files import make_folder, write_json
from scaling.records.paths import RunFolder, default_folder
from scaling.report.publish import publish
from scaling.spec.plan import Plan


def write_folder(analysis: Analysis, plan: Plan, drawn: tuple[Timeline, ...], path: str | None) -> RunFolder:
    """Write plan.json, analysis.json, timeline.json and the reports. InputError where the folder cannot be written."""
    folder = check_folder(Path(path) if path else default_folder(plan.id))
    make_folder(folder.path, str(folder.path))
    write_json(folder.plan, plan)
    write_json(folder.analysis, analysis)
    publish(folder, analysis, plan, drawn)
    return folder
