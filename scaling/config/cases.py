"""Settings that are measured by cases (task, batch, memory_limit, vary), checked against each other."""

from __future__ import annotations

from typing import Any

from scaling.config.values import ascending
from scaling.errors import InputError
from scaling.spec.run import Ddp, Inject, Spec

MAX = "max"


def batches(asked: Any) -> tuple[tuple[int, ...], bool]:
    """`batch` as the batches that it lists, and whether the largest one that fits is asked for."""
    if asked is None or asked == MAX:
        return (), asked == MAX
    found = asked if isinstance(asked, list) else [asked]
    if not found or not all(type(b) is int and b >= 1 for b in found):
        raise InputError(
            f"batch={asked}: `max`, or batches of at least 1 are expected, such as batch=[1,8,32]"
        )
    return ascending("batch", found), False


def check_cases(spec: Spec) -> None:
    """InputError where settings by cases do not go together, or limit a memory that is not searched."""
    if spec.task == "inference":
        _check_inference(spec)
    else:
        _check_training(spec)
    if spec.by_case:
        _check_options(spec)
    else:
        limits = {"": spec.memory_limit_bytes, "inject.": spec.inject.memory_limit_bytes}
        for key, given in limits.items():
            if given is not None:
                raise InputError(
                    f"{key}memory_limit: limits batch=max, batch=[...] and task=inference; give one of them too"
                )
    if spec.batch_max and spec.topology.device == "cpu" and spec.memory_limit_bytes is None:
        raise InputError(
            "batch=max: a CPU has no memory limit of its own; give one, such as memory_limit=2GiB"
        )


def _check_inference(spec: Spec) -> None:
    for name in ("accumulation_steps", "checkpointing"):
        if getattr(spec.vary, name):
            raise InputError(
                f"vary.{name}: belongs to training; task=inference varies precision, autocast and compile"
            )
    if spec.accumulation_steps != 1:
        raise InputError(
            f"accumulation_steps={spec.accumulation_steps}: belongs to training, not task=inference"
        )
    for name in ("checkpointing", "fused_optimizer"):
        if getattr(spec, name):
            raise InputError(f"{name}=true: belongs to training; leave it out with task=inference")
    changed = _changed(spec.ddp, Ddp())
    if changed:
        raise InputError(f"ddp.{changed[0]}: belongs to training; leave it out with task=inference")


def _check_training(spec: Spec) -> None:
    for name in ("autocast", "compile"):
        if getattr(spec.vary, name):
            raise InputError(
                f"vary.{name}: belongs to task=inference; use precision, checkpointing, accumulation_steps"
            )
    for steps in spec.vary.accumulation_steps or (spec.accumulation_steps,):
        for batch in spec.batches or (spec.batch_per_rank,):
            if batch % steps:
                raise InputError(
                    f"batch={batch}: does not divide by accumulation_steps {steps}; use a multiple"
                )


def _check_options(spec: Spec) -> None:
    """Reject options that runs by cases do not support.

    A communication hook needs memory of its own in a step that is reduced, but the step that a rank tries alone
    must need as much memory as any other.
    """
    if spec.mode != "weak":
        raise InputError(
            f"mode={spec.mode}: with batch, vary or task=inference every rank has a batch of its own; use mode=weak"
        )
    if spec.data.target is not None:
        own = spec.data.name == spec.data.target.rpartition(".")[2]
        asked = f"data._target_={spec.data.target}" if own else f"data={spec.data.name}"
        raise InputError(
            f"{asked}: batch, vary and task=inference take batches that the model makes up; use data=synthetic, or "
            "leave those out"
        )
    if spec.compile and spec.task == "train":
        raise InputError(
            "compile=true: with batch or vary training runs eager; leave out compile, or batch and vary"
        )
    if spec.ddp.comm_hook != "none":
        raise InputError(
            f"ddp.comm_hook={spec.ddp.comm_hook}: with batch or vary gradients are reduced as they are; use "
            "ddp.comm_hook=none, or leave out batch and vary"
        )
    if spec.ddp.static_graph:
        raise InputError(
            "ddp.static_graph=true: with batch or vary some steps that are tried reduce nothing, and DDP would count "
            "them; leave out static_graph, or batch and vary"
        )
    faults = [k for k in _changed(spec.inject, Inject()) if k not in ("rank", "memory_limit_bytes")]
    if faults:
        name = faults[0].removesuffix("_bit_s")
        raise InputError(
            f"inject.{name}: acts in a training step taken apart; leave out batch, vary and task=inference"
        )
    if spec.tracking.objective != "samples_per_s":
        raise InputError(
            f"tracking.objective={spec.tracking.objective}: a run by cases reports samples_per_s alone, of the "
            "fastest one; use tracking.objective=samples_per_s"
        )


def _changed(settings: Ddp | Inject, usual: Ddp | Inject) -> list[str]:
    """Names of the settings that differ from the usual ones."""
    names = type(settings).__slots__
    return [name for name in names if getattr(settings, name) != getattr(usual, name)]
