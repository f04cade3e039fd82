"""What is to be measured by cases (task, batch, memory_limit, vary), checked against each other."""

from __future__ import annotations

from typing import Any

from scaling import spec
from scaling.check_value import one_of
from scaling.errors import InputError
from scaling.fabric import Topology
from scaling.schema import Config, DdpConfig, InjectConfig
from scaling.units import parse_bytes

MAX = "max"


def check_cases(config: Config, topology: Topology) -> dict[str, Any]:
    """The fields of `spec.Spec` that say what is measured by cases."""
    one_of("task", config.task, spec.TASKS)
    vary = spec.Vary(**{name: tuple(value or ()) for name, value in vars(config.vary).items()})
    batches = _batches(config.batch)
    limit = None if config.memory_limit is None else parse_bytes(config.memory_limit, "memory_limit")
    found: dict[str, Any] = {
        "task": config.task,
        "batches": batches,
        "batch_max": config.batch == MAX,
        "memory_limit_bytes": limit,
        "vary": vary,
    }
    if config.task == "inference":
        _inference(config, vary)
    else:
        _training(config, vary, batches)
    by_case = config.task == "inference" or config.batch is not None or vary != spec.Vary()
    if by_case:
        _alike(config)
        if config.tracking.objective != "samples_per_s":
            raise InputError(
                f"tracking.objective={config.tracking.objective}: measured by cases a run has samples_per_s, of the "
                "fastest one"
            )
    else:
        for key, given in (("", config.memory_limit), ("inject.", config.inject.memory_limit)):
            if given is not None:
                raise InputError(
                    f"{key}memory_limit: limits batch=max, batch=[...] and task=inference; give one of them too"
                )
    if config.batch == MAX and topology.device == "cpu" and limit is None:
        raise InputError(
            "batch=max: a CPU's memory has no end of its own; a limit is needed, such as memory_limit=2GiB"
        )
    return found


def _batches(asked: Any) -> tuple[int, ...]:
    if asked is None or asked == MAX:
        return ()
    found = asked if isinstance(asked, list) else [asked]
    if not found or not all(type(b) is int and b >= 1 for b in found):
        raise InputError(
            f"batch={asked}: `max`, or batches of at least 1 are expected, such as batch=[1,8,32]"
        )
    return tuple(sorted(set(found)))


def _inference(config: Config, vary: spec.Vary) -> None:
    for name in ("accumulation_steps", "checkpointing"):
        if getattr(vary, name):
            raise InputError(
                f"vary.{name}: belongs to training; task=inference varies precision, autocast and compile"
            )
    if config.accumulation_steps != 1:
        raise InputError(
            f"accumulation_steps={config.accumulation_steps}: belongs to training, not task=inference"
        )
    for name in ("checkpointing", "fused_optimizer"):
        if getattr(config, name):
            raise InputError(f"{name}=true: belongs to training; leave it out with task=inference")
    changed = _changed(config.ddp, DdpConfig())
    if changed:
        raise InputError(f"ddp.{changed[0]}: belongs to training; leave it out with task=inference")


def _training(config: Config, vary: spec.Vary, batches: tuple[int, ...]) -> None:
    for name in ("autocast", "compile"):
        if getattr(vary, name):
            raise InputError(
                f"vary.{name}: belongs to task=inference; use precision, checkpointing, accumulation_steps"
            )
    for steps in vary.accumulation_steps or (config.accumulation_steps,):
        if steps < 1:
            raise InputError(
                f"vary.accumulation_steps={list(vary.accumulation_steps)}: at least 1 is expected"
            )
        for batch in batches or (config.batch_per_rank,):
            if batch % steps:
                raise InputError(
                    f"batch={batch}: does not divide by accumulation_steps {steps}; use a multiple"
                )


def _alike(config: Config) -> None:
    """What only blocks of one training step know.

    A communication hook needs memory of its own in a step that is reduced, and the step that a rank tries alone
    has to take as much as any.
    """
    if config.mode != "weak":
        raise InputError(
            f"mode={config.mode}: with batch, vary or task=inference every rank has a batch of its own; use mode=weak"
        )
    target, name = config.data.get("_target_"), config.data.get("name")
    if target is not None:
        raise InputError(
            f"{f'data._target_={target}' if name == 'synthetic' else f'data={name}'}: batch, vary and task=inference "
            "take batches that the model makes up; use data=synthetic, or leave those out"
        )
    if config.compile and config.task == "train":
        raise InputError(
            "compile=true: with batch or vary training runs eager; leave out compile, or batch and vary"
        )
    if config.ddp.comm_hook != "none":
        raise InputError(
            f"ddp.comm_hook={config.ddp.comm_hook}: with batch or vary gradients are reduced as they are; use "
            "ddp.comm_hook=none, or leave out batch and vary"
        )
    if config.ddp.static_graph:
        raise InputError(
            "ddp.static_graph=true: with batch or vary steps are tried that reduce nothing, which DDP would count; "
            "leave out static_graph, or batch and vary"
        )
    faults = [k for k in _changed(config.inject, InjectConfig()) if k not in ("rank", "memory_limit")]
    if faults:
        raise InputError(
            f"inject.{faults[0]}: acts in a training step taken apart; leave out batch, vary and task=inference"
        )


def _changed(settings: DdpConfig | InjectConfig, usual: DdpConfig | InjectConfig) -> list[str]:
    """Names of the settings that are not as usual."""
    return [name for name, value in vars(settings).items() if value != getattr(usual, name)]
