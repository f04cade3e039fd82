"""The model and the data that were asked for, checked without an import of either."""

from __future__ import annotations

import importlib.util
from typing import Any

from scaling.config.values import check_value
from scaling.errors import InputError
from scaling.spec.environment import is_secret, is_secret_value
from scaling.spec.run import Data, Model


def to_model(config: dict[str, Any], *, accelerated: bool = False) -> Model:
    """A workload's factory. Keys that the harness does not know are arguments of it.

    `usual` has what arguments without a value are on a CPU and on an accelerator (`accelerated`): what keeps a core
    busy is over on an accelerator before the host has launched it.
    """
    own = {"name", "_target_", "synthetic", "args", "requires", "limits", "usual"}
    target = config.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"model._target_={target}: the dotted path of a factory is expected, such as package.module.factory"
        )
    args = {str(k): v for k, v in config.items() if k not in own} | dict(config.get("args") or {})
    for key, (on_cpu, on_accelerator) in (config.get("usual") or {}).items():
        if args.get(key) is None:
            args[key] = on_accelerator if accelerated else on_cpu
    for key, limits in (config.get("limits") or {}).items():
        _within(f"model.{key}", args.get(key), **limits)
    _installed(str(config.get("name")), config.get("requires"))
    _without_secrets("model", args)
    return Model(
        name=str(config.get("name", target.rsplit(".", 1)[-1])),
        target=target,
        args=args,
        synthetic=bool(config.get("synthetic", False)),
    )


def _without_secrets(key: str, value: Any) -> None:
    """InputError for a text that is, or by its name may be, a secret: arguments are written into the run's folder."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _without_secrets(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _without_secrets(key, inner)
    elif isinstance(value, str) and (is_secret(key.rpartition(".")[2]) or is_secret_value(value)):
        raise InputError(
            f"{key}: this secret would be written into the run's folder; set it in the environment of `scaling` "
            "instead, and read it there"
        )


def to_data(config: dict[str, Any]) -> Data:
    """Where batches come from. As for a model, keys that the harness does not know are arguments."""
    own = {"name", "_target_", "args", "workers", "prefetch", "pin_memory"}
    target = config.get("_target_")
    if target is None:
        return Data()
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"data._target_={target}: the dotted path of a torch Dataset is expected, such as package.module.Dataset"
        )
    counts = {"workers": 0, "prefetch": 1}
    for key, least in counts.items():
        value = config.get(key, least)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"data.{key}={value}: a whole number, at least {least}, is expected")
        check_value(Data, key, value, f"data.{key}")
    if not isinstance(config.get("pin_memory", True), bool):
        raise InputError(f"data.pin_memory={config['pin_memory']}: true or false is expected")
    args = {str(k): v for k, v in config.items() if k not in own} | dict(config.get("args") or {})
    for key, value in args.items():
        if value is None:
            raise InputError(f"data.{key}: a value is expected, such as data.{key}=...")
    named = config.get("name", "synthetic")
    return Data(
        name=target.rsplit(".", 1)[-1] if named in ("synthetic", "custom") else str(named),
        target=target,
        args=args,
        **{key: config.get(key, least) for key, least in counts.items()},
        pin_memory=config.get("pin_memory", True),
    )


def _installed(model: str, package: str | None) -> None:
    """InputError where a preset's package is missing. It is not imported: that takes a second."""
    if package is not None and importlib.util.find_spec(package) is None:
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
