"""Cases: one model with several batches, precisions and modes, side by side. Pure: no I/O, no torch.

A variant is a combination of settings; a case is a variant at one batch. Inference and tables of training settings are
measured by cases; `scaling.settings.schedule` has the blocks that decompose one training step.
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
    vary = spec.vary
    combinations = [
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
