"""Cases: one model in several batches, precisions and modes, beside each other. Pure: no I/O, no torch.

A case is what is run, a variant is a case but for its batch. Inference and tables of training settings are
measured by cases; `scaling.plan` has the blocks that take one training step apart.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from scaling.spec import Spec

SCHEMA = 1
INFERENCE_BATCHES = (1, 8, 32)
"""Where none are asked for."""
HALF = ("bf16", "fp16")
"""Precisions in which a forward can run by autocast, or with the parameters themselves converted."""
RUNGS_MAX = 6
STAGE_IDS = 10**12
"""More than the stretches of any stage."""
LATENCY = "latency"
THROUGHPUT = "throughput"
TRAINING = "training"
ARMS = (LATENCY, THROUGHPUT, TRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a model is run."""

    precision: str
    autocast: bool
    compile: bool = False
    checkpointing: bool = False
    accumulation_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A variant at one batch: samples a rank and step (training: over all accumulation steps)."""

    variant: Variant
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one case ended at one world size: fits, oom or failed, with the rank and what it said."""

    world_size: int
    case: int
    status: str
    rank: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """cases.json of one launch."""

    schema: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A block of one case on ranks 0 to world_size - 1. `id` is the same on every rank."""

    id: int
    round: int
    world_size: int
    case: int
    """Its place among the run's cases."""
    arm: str


def variants(spec: Spec) -> tuple[Variant, ...]:
    """Every combination of what is to vary, in a fixed order."""
    vary = spec.vary
    found = [
        Variant(
            precision=precision,
            autocast=autocast,
            compile=compiled,
            checkpointing=checkpointing,
            accumulation_steps=accumulation,
        )
        for precision in vary.precision or (spec.precision,)
        for autocast in _autocast(spec, precision)
        for compiled, checkpointing, accumulation in itertools.product(
            vary.compile or (spec.compile,),
            vary.checkpointing or (spec.checkpointing,),
            vary.accumulation_steps or (spec.accumulation_steps,),
        )
    ]
    return tuple(dict.fromkeys(found))


def _autocast(spec: Spec, precision: str) -> tuple[bool, ...]:
    """Training keeps fp32 parameters; inference can do with and without, and does both unless told."""
    if precision not in HALF:
        return (False,)
    return (spec.vary.autocast or (True, False)) if spec.task == "inference" else (True,)


def batches(spec: Spec) -> tuple[int, ...]:
    """The batches asked for, without `batch=max`."""
    return spec.batches or (INFERENCE_BATCHES if spec.task == "inference" else (spec.batch_per_rank,))


def cases(spec: Spec, rungs: dict[Variant, tuple[int, ...]] | None = None) -> tuple[Case, ...]:
    """All cases of a run. `rungs`: batches up to what was found to fit, with `batch=max`; none before that."""
    found = rungs or {}
    return tuple(
        Case(variant=variant, batch=batch)
        for variant in variants(spec)
        for batch in (found.get(variant, ()) if spec.batch_max else batches(spec))
    )


def ladder(largest: int, unit: int = 1) -> tuple[int, ...]:
    """Where throughput is measured: powers of two (of four, where those are many) times `unit`, and the largest."""
    steps = [unit << k for k in range(largest.bit_length()) if unit << k < largest]
    return (*steps[:: 1 + (len(steps) > RUNGS_MAX)], largest) if largest else ()


def arms(spec: Spec) -> tuple[str, ...]:
    """What is run of each case. On a CPU a call returns when it is done: latency tells the throughput too."""
    if spec.task == "train":
        return (TRAINING,)
    return (LATENCY,) if spec.topology.device == "cpu" else (LATENCY, THROUGHPUT)


def stages(spec: Spec) -> tuple[tuple[int, ...], ...]:
    """World sizes that are measured in turn, round by round.

    Replicas know nothing of each other, so all world sizes alternate. A DDP wrapper holds as much memory as
    the gradients, and what a case takes is to be its own: one world size has to be over before the next.
    """
    sizes = spec.world_sizes
    return (sizes,) if spec.task == "inference" else tuple((n,) for n in sizes)


def round_stretches(
    spec: Spec, launch: int, stage: int, number: int, alive: tuple[tuple[int, int], ...]
) -> tuple[Stretch, ...]:
    """One round over the (world size, case) pairs that run, in random order; the same on every rank.

    `alive` is the same in every round of a stage, so that no two stretches of a launch have one id.
    """
    rng = random.Random(f"{spec.seed}/{launch}/{stage}/{number}")
    visits = [(n, case, arm) for n, case in alive for arm in arms(spec)]
    rng.shuffle(visits)
    first = stage * STAGE_IDS + number * len(visits)
    return tuple(
        Stretch(id=first + index, round=number, world_size=n, case=case, arm=arm)
        for index, (n, case, arm) in enumerate(visits)
    )
