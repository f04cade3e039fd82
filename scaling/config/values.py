"""Values of a composed config against the bounds that stand beside the frozen types' fields.

InputError has the key, the value and what would be accepted.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from scaling.config.schema import Composed
from scaling.errors import InputError
from scaling.spec.settings import Setting, out_of_bounds, settings

T = TypeVar("T")


def freeze(kind: type[T], config: Composed, where: str = "", **worked_out: Any) -> T:
    """A frozen `kind` with the values of `config`, but for those in `worked_out`. All of them are checked.

    `where` is the key of `config` in YAML, empty for the root.
    """
    values = {
        s.name: _checked(s, worked_out[s.name], _join(where, s.key))
        if s.name in worked_out
        else _frozen(s, getattr(config, s.key), _join(where, s.key))
        for s in settings(kind)
    }
    return kind(**values)


def check(kind: type, config: Composed, where: str = "") -> None:
    """Check each value that `config` has for a field of `kind`, and leave out nulls."""
    for setting in settings(kind):
        value = getattr(config, setting.key)
        if value is not None:
            _frozen(setting, value, _join(where, setting.key))


def check_value(kind: type, name: str, value: Any, key: str) -> None:
    """Check one value against the bounds of the field `name` of `kind`. `key` is its name in the message."""
    (setting,) = (s for s in settings(kind) if s.name == name)
    _checked(setting, value, key)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _frozen(setting: Setting, value: Any, key: str) -> Any:
    """A value of YAML as the frozen type has it."""
    if value is None:
        return setting.default() if setting.default is not None else None
    if setting.text is not None:
        return _checked(setting, setting.text.parse(value, key), key, shown=value)
    if dataclasses.is_dataclass(setting.type):
        return freeze(typing.cast("type[Any]", setting.type), value, key)
    if isinstance(value, list):
        value = _items(setting.type, value, key)
    return _checked(setting, value, key)


def _items(kind: Any, values: list[Any], key: str) -> tuple[Any, ...]:
    inner = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(inner):
        return tuple(freeze(typing.cast("type[Any]", inner), v, f"{key}.{i}") for i, v in enumerate(values))
    return tuple(tuple(v) if isinstance(v, list) else v for v in values)


def _checked(setting: Setting, value: Any, key: str, *, shown: Any = None) -> Any:
    """The value, or InputError where it is out of a bound. None is in any bound. `shown` is the value in YAML."""
    wrong = out_of_bounds(setting.bounds, value, setting.text)
    if wrong is not None:
        item, wanted = wrong
        raise InputError(f"{key}={_in_yaml(item) if shown is None else shown}: {wanted}")
    return value


def _in_yaml(value: Any) -> str:
    """The value as an override has it: `[true,false]`."""
    match value:
        case tuple():
            return f"[{','.join(map(_in_yaml, value))}]"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def ascending(key: str, asked: Sequence[int]) -> tuple[int, ...]:
    """A list of numbers in order. InputError where one stands in it twice."""
    if len(set(asked)) < len(asked):
        raise InputError(f"{key}=[{','.join(map(str, asked))}]: each item once is expected")
    return tuple(sorted(asked))


def check_batches(
    mode: str, world_sizes: Sequence[int], *, batch_per_rank: int, global_batch: int, steps: int
) -> None:
    """InputError where the samples of a step do not divide among ranks and accumulation steps."""
    if mode == "strong":
        for size in world_sizes:
            if global_batch % (size * steps):
                raise InputError(
                    f"global_batch={global_batch}: does not divide by world size {size} x "
                    f"accumulation_steps {steps}; use a multiple"
                )
    elif batch_per_rank % steps:
        raise InputError(
            f"batch_per_rank={batch_per_rank}: does not divide by accumulation_steps={steps}; use a multiple"
        )
