"""jobs.json: the Slurm jobs that were submitted for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.spec.settings import Named

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One job that was submitted for a run."""

    id: Annotated[str, Named()]
    at: str
    partition: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """jobs.json: the jobs of a run, the latest last."""

    schema: int
    jobs: tuple[Submitted, ...]


def submitted(folder: RunFolder) -> tuple[Submitted, ...]:
    """The jobs that were submitted for a run, the latest last."""
    return read_json(folder.jobs, Jobs, SCHEMA).jobs if folder.jobs.is_file() else ()
