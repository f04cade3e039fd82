"""What one command line asks for, composed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scaling.spec.run import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One checked request: what to run, where to put it, and the YAML it was composed to."""

    spec: Spec
    run_dir: Path | None
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What one command line asks for; several in a multirun. Empty when Hydra only printed something."""

    items: tuple[Request, ...]
    multirun: bool
