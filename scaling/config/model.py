"""The model and the data that were asked for, checked without an import of either, and what is measured by cases."""

from __future__ import annotations

import importlib.util
import itertools
from types import SimpleNamespace
from typing import Any

from scaling.config.schema import ascending, freeze, shaped
from scaling.errors import InputError
from scaling.reading import INT_MAX
from scaling.settings.environment import is_secret, is_secret_value
from scaling.settings.run import Data, Ddp, Inject, Model, Spec


def to_model(config: dict[str, Any], *, accelerated: bool = False) -> Model:
    """A workload's factory. Keys that the harness does not know are arguments of it.

    `usual` has what arguments without a value are on a CPU and on an accelerator (`accelerated`): what keeps a core
    busy is over on an accelerator before the host has launched it.
    """
    reserved = {"name", "_target_", "synthetic", "args", "requires", "limits", "usual"}
    target = config.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"model._target_={target}: the dotted path of a factory is expected, such as package.module.factory"
        )
    with shaped("model", "model"):
        args = {str(k): v for k, v in config.items() if k not in reserved} | dict(config.get("args") or {})
        for key, (on_cpu, on_accelerator) in (config.get("usual") or {}).items():
            if args.get(key) is None:
                args[key] = on_accelerator if accelerated else on_cpu
        for key, limits in (config.get("limits") or {}).items():
            _within(f"model.{key}", args.get(key), **limits)
        _installed(str(config.get("name")), config.get("requires"))
        _check_arguments("model", args)
    name = str(config.get("name", target.rsplit(".", 1)[-1]))
    return Model(name=name, target=target, args=args, synthetic=bool(config.get("synthetic", False)))


def _check_arguments(key: str, value: Any) -> None:
    """InputError for what plan.json cannot hold, or a text that is, or by its name may be, a secret."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_arguments(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_arguments(key, inner)
    elif value is not None and not isinstance(value, str) and not abs(value) <= INT_MAX:
        raise InputError(f"{key}={value}: a finite number of at most 64 bits is expected")
    elif isinstance(value, str) and (is_secret(key.rpartition(".")[2]) or is_secret_value(value)):
        raise InputError(
            f"{key}: this secret would be written into the run's folder; set it in the environment of `scaling` "
            "instead, and read it there"
        )


def to_data(config: dict[str, Any]) -> Data:
    """Where batches come from. As for a model, keys that the harness does not know are arguments."""
    loading: dict[str, Any] = {"workers": 0, "prefetch": 1, "pin_memory": True}
    reserved = {"name", "_target_", "args", *loading}
    loading |= {key: config[key] for key in loading if key in config}
    target = config.get("_target_")
    if target is None:
        return Data()
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"data._target_={target}: the dotted path of a torch Dataset is expected, such as package.module.Dataset"
        )
    for key, least in (("workers", 0), ("prefetch", 1)):
        if type(loading[key]) is not int:
            raise InputError(f"data.{key}={loading[key]}: a whole number, at least {least}, is expected")
    if not isinstance(loading["pin_memory"], bool):
        raise InputError(f"data.pin_memory={loading['pin_memory']}: true or false is expected")
    with shaped("data", "data"):
        args = {str(k): v for k, v in config.items() if k not in reserved} | dict(config.get("args") or {})
        _check_arguments("data", args)
    for key, value in args.items():
        if value is None:
            raise InputError(f"data.{key}: a value is expected, such as data.{key}=...")
    named = config.get("name", "synthetic")
    name = target.rsplit(".", 1)[-1] if named in ("synthetic", "custom") else str(named)
    return freeze(Data, SimpleNamespace(**loading), "data", name=name, target=target, args=args)


def _installed(model: str, package: str | None) -> None:
    """InputError where a preset's package is missing. It is not imported: that takes a second."""
    if package is not None and importlib.util.find_spec(package.partition(".")[0]) is None:
        raise InputError(
            f"model={model}: needs {package}, which is not installed; pip install 'scaling-harness[models]'"
        )


def _within(
    key: str, value: Any, *, least: int | None = None, most: int | None = None, multiple_of: int = 1
) -> None:
    """InputError for a size that a preset cannot take (`limits` in its file)."""
    low, high = least or multiple_of, float("inf") if most is None else most
    if not isinstance(value, int) or not low <= value <= high or value % multiple_of:
        whole = f"a multiple of {multiple_of}" if multiple_of > 1 else "a whole number"
        bound = f"from {low} on" if most is None else f"from {low} to {most}"
        raise InputError(f"{key}={value}: {whole} {bound} is expected")


MAX = "max"


def batches(asked: Any) -> tuple[tuple[int, ...], bool]:
    """`batch` as the batches that it lists, and whether the largest one that fits is asked for."""
    if asked is None or asked == MAX:
        return (), asked == MAX
    listed = asked if isinstance(asked, list) else [asked]
    if not listed or not all(type(b) is int and b >= 1 for b in listed):
        raise InputError(
            f"batch={asked}: `max`, or batches of at least 1 are expected, such as batch=[1,8,32]"
        )
    return ascending("batch", listed), False


def check_cases(spec: Spec) -> None:
    """InputError where settings by cases do not go together, or limit a memory that is not searched."""
    if spec.task == "inference":
        _check_inference(spec)
    else:
        _check_training(spec)
    if spec.kind.by_cases:
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
    if names := changed(spec.ddp, Ddp()):
        raise InputError(f"ddp.{names[0]}: belongs to training; leave it out with task=inference")


def _check_training(spec: Spec) -> None:
    for name in ("autocast", "compile"):
        if getattr(spec.vary, name):
            raise InputError(
                f"vary.{name}: belongs to task=inference; use precision, checkpointing, accumulation_steps"
            )
    steps_a_batch = spec.vary.accumulation_steps or (spec.accumulation_steps,)
    for steps, batch in itertools.product(steps_a_batch, spec.batches or (spec.batch_per_rank,)):
        if batch % steps:
            raise InputError(f"batch={batch}: does not divide by accumulation_steps {steps}; use a multiple")


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
        by_target = spec.data.name == spec.data.target.rpartition(".")[2]
        asked = f"data._target_={spec.data.target}" if by_target else f"data={spec.data.name}"
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
    if faults := [k for k in changed(spec.inject, Inject()) if k not in ("rank", "memory_limit_bytes")]:
        name = faults[0].removesuffix("_bit_s")
        raise InputError(
            f"inject.{name}: acts in a training step taken apart; leave out batch, vary and task=inference"
        )


def changed(settings: Any, usual: Any) -> list[str]:
    """Names of the settings that differ from the usual ones."""
    names = type(usual).__slots__
    return [name for name in names if getattr(settings, name) != getattr(usual, name)]
