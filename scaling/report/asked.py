"""What a run was asked to measure, as texts; `scaling plan` needs it without the types of results, slow to load."""

from __future__ import annotations

from scaling.spec.cases import batches
from scaling.spec.run import Spec
from scaling.units import format_bytes


def precisions(spec: Spec) -> str:
    """All precisions that are measured."""
    return ", ".join(spec.vary.precision or (spec.precision,))


def case_batches(spec: Spec) -> str:
    """The batches of a run by cases, and its task."""
    listed = "the largest that fits, and up to it" if spec.batch_max else ", ".join(map(str, batches(spec)))
    limit = f", in {format_bytes(spec.memory_limit_bytes)} a rank" if spec.memory_limit_bytes else ""
    return f"{listed}{limit}, each a rank; {spec.task}"
