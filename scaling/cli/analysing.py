"""Analysis that launchers call. Imports are made on the first call, since a plan does not need polars."""

from __future__ import annotations

from scaling.records.launch import Launch
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.spec.plan import Plan


def preflight(launch: LaunchFolder, plan: Plan) -> tuple[str, ...]:
    """The problems found so far on the ranks of a launch, one line each."""
    from scaling.analysis.doctor import preflight as rules  # noqa: PLC0415

    return rules.problems(Launch(launch, plan))


def analyse(folder: RunFolder) -> None:
    """Write everything that is derived from a run's records."""
    from scaling.cli.pipeline import rebuild  # noqa: PLC0415

    rebuild(folder)
