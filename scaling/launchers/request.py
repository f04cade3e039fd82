"""What a launcher is asked to start."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.records.paths import LaunchFolder, RunFolder
from scaling.spec.batch_search import MEASURE
from scaling.spec.plan import Plan
from scaling.spec.run import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One launch of a plan, with as many ranks as its largest world size needs."""

    plan: Plan
    folder: RunFolder
    launch: LaunchFolder
    world_sizes: tuple[int, ...]
    what: str = MEASURE
    """Measure, or search or prove the largest batch."""
    program: tuple[str, ...] = ()
    """What torchrun runs instead of our worker, such as a script and its arguments."""

    @property
    def spec(self) -> Spec:
        return self.plan.spec

    @property
    def ranks(self) -> int:
        return max(self.world_sizes)
