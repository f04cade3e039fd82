"""Cases: one model with several batches, precisions and modes, side by side. Pure: no I/O, no torch.

A variant is a combination of settings; a case is a variant at one batch. Inference and tables of training settings are
measured by cases; `scaling.settings.schedule` has the blocks that decompose one training step.
A search for the largest batch that fits tells the next batch to try, and the result.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from scaling.settings.run import Spec

INFERENCE_BATCHES = (1, 8, 32)
"""Batches of inference when the run names none."""
HALF = ("bf16", "fp16")
"""Precisions in which a forward can run with autocast or with converted parameters."""
RUNGS_MAX = 6
STAGE_IDS = 10**12
"""Ids reserved for a stage, more than any stage has stretches."""
LATENCY = "latency"
THROUGHPUT = "throughput"
TRAINING = "training"
ARMS = (LATENCY, THROUGHPUT, TRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings under which a model runs, without its batch."""

    precision: str
    autocast: bool
    compile: bool = False
    checkpointing: bool = False
    accumulation_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A variant at one batch, in samples per rank and step (training: over all accumulation steps)."""

    variant: Variant
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBlock:
    """A block of one case on ranks 0 to world_size - 1. `id` is the same on every rank."""

    id: int
    round: int
    world_size: int
    case: int
    """Index among the run's cases."""
    arm: str


def variants(spec: Spec) -> tuple[Variant, ...]:
    """Every combination of the settings to vary, in a fixed order."""
    names = ("compile", "checkpointing", "accumulation_steps")
    values = [getattr(spec.vary, name) or (getattr(spec, name),) for name in names]
    combinations = [
        Variant(precision=precision, autocast=autocast, **dict(zip(names, each, strict=True)))
        for precision in spec.vary.precision or (spec.precision,)
        for autocast in _autocast(spec, precision)
        for each in itertools.product(*values)
    ]
    return tuple(dict.fromkeys(combinations))


def _autocast(spec: Spec, precision: str) -> tuple[bool, ...]:
    """Whether autocast is on. Training keeps fp32 parameters; inference runs both ways unless told otherwise."""
    if precision not in HALF:
        return (False,)
    return (spec.vary.autocast or (True, False)) if spec.task == "inference" else (True,)


def batches(spec: Spec) -> tuple[int, ...]:
    """The batches that the run asks for; `batch=max` adds none here."""
    return spec.batches or (INFERENCE_BATCHES if spec.task == "inference" else (spec.batch_per_rank,))


def cases(spec: Spec, rungs: dict[Variant, tuple[int, ...]] | None = None) -> tuple[Case, ...]:
    """All cases of a run. `rungs`: with `batch=max`, the batches to measure once the largest is found."""
    ladders = rungs or {}
    return tuple(
        Case(variant=variant, batch=batch)
        for variant in variants(spec)
        for batch in (ladders.get(variant, ()) if spec.batch_max else batches(spec))
    )


def ladder(largest: int, unit: int = 1) -> tuple[int, ...]:
    """Batches at which throughput is measured: powers of two (or four, if many) times `unit`, and the largest."""
    steps = [unit << k for k in range(largest.bit_length()) if unit << k < largest]
    return (*steps[:: 1 + (len(steps) > RUNGS_MAX)], largest) if largest else ()


def arms(spec: Spec) -> tuple[str, ...]:
    """Arms of each case. On a CPU a call returns when it is done, so the latency arm also gives the throughput."""
    if spec.task == "train":
        return (TRAINING,)
    return (LATENCY,) if spec.topology.device == "cpu" else (LATENCY, THROUGHPUT)


def stages(spec: Spec) -> tuple[tuple[int, ...], ...]:
    """Groups of world sizes; those of a group are measured in turn, round by round.

    Inference replicas are independent, so all world sizes alternate. In training, a DDP wrapper holds as much memory
    as the gradients, which would add to another case's memory, so one world size ends before the next begins.
    """
    sizes = spec.world_sizes
    return (sizes,) if spec.task == "inference" else tuple((n,) for n in sizes)


def round_stretches(
    spec: Spec, launch: int, stage: int, number: int, alive: tuple[tuple[int, int], ...]
) -> tuple[CaseBlock, ...]:
    """One round over the (world size, case) pairs that run, in random order; the same on every rank.

    `alive` is the same in every round of a stage, so that ids are unique within a launch.
    """
    rng = random.Random(f"{spec.seed}/{launch}/{stage}/{number}")
    visits = [(n, case, arm) for n, case in alive for arm in arms(spec)]
    rng.shuffle(visits)
    first = stage * STAGE_IDS + number * len(visits)
    return tuple(
        CaseBlock(id=first + index, round=number, world_size=n, case=case, arm=arm)
        for index, (n, case, arm) in enumerate(visits)
    )


SCHEMA = 1
RESOLUTION = 32
"""The search ends when it knows the largest batch to one part in 32; batches below 64 exactly."""
CEILING = 2**20
"""The search stops at this batch: a model that fits here is not limited by memory."""
MARGIN = 0.03
"""Fraction of the memory limit that the proof in fresh processes leaves unused."""
LAUNCHES_MAX = 12
"""Limit on the launches of a search. Each but the last ends with a batch that is too large, so fewer suffice."""
PROOFS_MAX = 4

MEASURE, SEARCH, PROVE = "measure", "search", "prove"
"""Purposes of a launch by cases."""
FITS, OOM, KILLED, FAILED, LATE = "fits", "oom", "killed", "failed", "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried. `rank`: a rank on which it did not fit."""

    batch: int
    status: str
    """fits, oom, killed (the process ended without a message, as under a cgroup's limit), or failed: the model
    cannot train with one sample a micro-step, for example because of batch normalisation, or late (it was not tried,
    since the search's time did not suffice."""
    rank: int | None = None
    peak_bytes: int | None = None
    """Peak memory of the rank that used most; None where the batch did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSearch:
    """Search state of one variant; batches in samples per rank and step."""

    variant: Variant
    tries: tuple[Try, ...] = ()
    proved: int | None = None
    """Batch that ran in fresh processes within the limit less MARGIN; None until proved."""
    refuted: tuple[int, ...] = ()
    """Batches that failed that proof."""

    @property
    def found(self) -> int:
        """The largest batch that fitted; 0 if none did."""
        return max((t.batch for t in self.tries if t.status == FITS), default=0)

    @property
    def too_large(self) -> int | None:
        """The smallest batch that did not fit; None if all did."""
        return min((t.batch for t in self.tries if t.status in (OOM, KILLED)), default=None)

    @property
    def late(self) -> bool:
        """Whether the search ended for want of time."""
        return any(t.status == LATE for t in self.tries)

    @property
    def too_small(self) -> int:
        """The largest batch that is too small for the model to train with; 0 if there is none."""
        return max((t.batch for t in self.tries if t.status == FAILED), default=0)

    @property
    def next(self) -> int | None:
        """The next batch to try: double until one does not fit, then bisect. None when the search has ended."""
        if self.late:
            return None
        unit, high = self.variant.accumulation_steps, self.too_large
        low = max(self.found, self.too_small)
        if high is None:
            return None if low >= CEILING else max(unit, 2 * low)
        if high - low <= step(low, unit):
            return None
        return (low + high) // 2 // unit * unit

    @property
    def candidate(self) -> int:
        """The batch to prove: the largest that fitted, or a step below the smallest that was refuted."""
        unit = self.variant.accumulation_steps
        if not self.refuted:
            return self.found
        lowest = min(self.refuted)
        lower = lowest - max(step(lowest, unit), int(lowest * MARGIN) // unit * unit)
        return lower if lower > self.too_small else 0

    @property
    def rungs(self) -> tuple[int, ...]:
        """Batches to measure, up to the candidate. The measuring processes prove the candidate first."""
        rungs = ladder(self.candidate, self.variant.accumulation_steps)
        return tuple(batch for batch in rungs if batch > self.too_small)


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Contents of largest.json: the search of each variant."""

    schema: int
    limit_bytes: int | None
    items: tuple[VariantSearch, ...]
    failure: str | None = None
    """What ended the search, other than memory."""

    @property
    def settled(self) -> bool:
        """Whether each variant's batch is proved, or none of its batches fits."""
        return all(item.proved is not None or not item.candidate for item in self.items)

    def rungs(self) -> dict[Variant, tuple[int, ...]]:
        """Batches to measure of each variant."""
        return {item.variant: item.rungs for item in self.items}


def step(batch: int, unit: int = 1) -> int:
    """Distance between batches that the search distinguishes."""
    return max(1, batch // RESOLUTION // unit) * unit
