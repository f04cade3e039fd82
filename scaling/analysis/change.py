"""What a prediction starts from, what is to differ, and what it leans on.

Arrays lead with S: the estimate first, then values resampled over rounds. R ranks, K buckets; ns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from scaling.analysis.buckets import Buckets, Gradients
from scaling.analysis.ring import Hops
from scaling.analysis.stats import Floats

Phases = Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One measured world size."""

    world_size: int
    batch: int
    """Samples a rank and optimizer step."""
    accumulation: int
    reductions: int
    """Micro-steps of a step that reduce: 1 unless no_sync was left out."""
    kernels: bool
    """Communication takes the device's own compute units (NCCL): it slows compute down for as long as both run."""
    units: int
    """Rounds behind the numbers; launches, where there are enough of them."""
    groups: int
    """Of units that were drawn apart (scaling.analysis.stats.drawn)."""
    plain: Floats  # S
    whole: Phases  # S: a rank alone with the batch of all ranks (strong scaling), or with its own
    shared: bool
    """Whether the batch of `whole` is that of all ranks."""
    alone: Phases  # S: bare_one
    beside: Phases  # S: bare_all
    solo: Phases  # S x R: ddp_solo
    own: Phases  # S x R: the probe's phases
    buckets: Buckets
    """As they were, in bytes of gradients."""
    gradients: Gradients
    """For other buckets."""
    link: Hops
    wire: float = 1.0
    """Bytes sent over bytes of gradients: what a communication hook makes of them."""
    late: tuple[int, ...]
    jitter: Floats  # S: standard deviation of a rank's own time from step to step
    fixed_share: float | None
    """Of forward and backward, what a smaller micro-batch would not spare; None: one batch was measured."""
    fixed_doubt: float | None = None
    """Half of its 95 % interval; None: the data bear none."""

    @property
    def peers(self) -> list[int]:
        """Ranks that are not late."""
        return [r for r in range(self.world_size) if r not in self.late]

    @property
    def whole_share(self) -> float:
        """Forward and backward of a rank's own batch over those of the whole one, alone; 1 where that is the same."""
        own, whole = (float(of["forward"][0] + of["compute"][0]) for of in (self.alone, self.whole))
        return own / whole

    def estimate(self) -> Source:
        """The same without its resampled values."""

        def first(phases: Phases) -> Phases:
            return {name: values[:1] for name, values in phases.items()}

        return dataclasses.replace(
            self,
            plain=self.plain[:1],
            whole=first(self.whole),
            alone=first(self.alone),
            beside=first(self.beside),
            solo=first(self.solo),
            own=first(self.own),
            buckets=dataclasses.replace(self.buckets, ready=self.buckets.ready[:1]),
            gradients=dataclasses.replace(self.gradients, ready=self.gradients.ready[:1]),
            link=self.link.estimate(),
            jitter=self.jitter[:1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to differ; None: as measured."""

    world_size: int | None = None
    fabric: tuple[Hops, ...] | None = None
    """Levels from the innermost out; None: the measured link, whatever the world size."""
    fabric_doubt: float = 0.0
    """By what fraction the fabric's bandwidth may be off (95 %)."""
    batch: int | None = None
    """Samples a rank and optimizer step, at the changed world size."""
    whole_batch: float = 1.0
    """Strong scaling: the batch of all ranks over the measured one."""
    accumulation: int | None = None
    reductions: int | None = None
    bucket_cap_mb: float | None = None
    compression: float = 1.0
    """What was sent of the gradients over what is to be."""
    compute_scale: float = 1.0
    """The target's compute against the source's."""
    without_straggler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """Assumptions of a prediction, at the values that it is made with."""

    compute: float = 1.0
    transfer: float = 1.0
    alpha: float = 1.0
    jitter: float = 1.0
    fixed_off: float = 0.0
    """By how much the fixed share is larger than the source has it (0 where it does not know)."""
    overlap_turned: bool = False
    """What communication adds to compute follows the time that both run with Gloo too, and stays with NCCL."""
    residual_follows: bool = True
    """What the simulation misses of the measured step is in proportion to it; else the same time."""


AS_IT_WAS, UPRIGHT = Change(), Lean()
