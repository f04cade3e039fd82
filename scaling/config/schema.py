"""The shape of the Hydra config, made from the frozen types of `scaling.settings`.

Hydra needs mutable dataclasses and knows neither Literal nor tuples. The fields, their defaults and their explanations
are those of the frozen types; this module lists only what YAML has in another shape. The values of a composed config
are checked against the bounds beside those fields: InputError has the key, the value and what would be accepted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from scaling.errors import InputError
from scaling.settings.bounds import OneOf, Setting, out_of_bounds, settings
from scaling.settings.run import Spec

MISSING: Any = "???"
"""OmegaConf's mark of a mandatory value."""

Composed: typing.TypeAlias = Any
"""An instance of a schema. `scaling.config.schema.freeze` makes a frozen, typed object of it."""

Shape = tuple[Any, Callable[[], Any]]
"""A field's type in YAML, and a function that makes its default."""


def schema_of(kind: type, name: str = "", instead: Mapping[str, Shape | None] | None = None) -> Any:
    """The mutable dataclass with the fields of `kind` as YAML has them; `instead` replaces, adds or (None) omits."""
    instead = instead or {}
    shapes = {s.key: _shape(s) for s in settings(kind) if s.name not in instead} | {**instead}
    fields = [
        (key, shape[0], dataclasses.field(default_factory=shape[1]))
        for key, shape in shapes.items()
        if shape is not None
    ]
    return dataclasses.make_dataclass(
        name or f"{kind.__name__}Config", fields, namespace={"__module__": __name__}
    )


def _shape(setting: Setting) -> Shape:
    kind = str if setting.text else _yaml_type(setting.type)
    if setting.nullable or (setting.optional and setting.default is None):
        return typing.Optional[kind], lambda: None  # noqa: UP045  a type made here, not an annotation
    if any(isinstance(bound, OneOf) and bound.auto for bound in setting.bounds):
        return kind, lambda: "auto"
    if dataclasses.is_dataclass(setting.type):
        return kind, kind
    if setting.default is None:
        return kind, lambda: MISSING
    default = setting.default()
    if setting.text and default is not None:
        return kind, lambda: setting.text.show(default)
    if isinstance(default, tuple):
        return kind, lambda: list(default)
    return (typing.Optional[kind] if setting.optional else kind), setting.default  # noqa: UP045


def _yaml_type(kind: Any) -> Any:
    """A field's type as OmegaConf takes it: lists for tuples, schemas for frozen types, any value in mappings."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return list[_yaml_type(inner[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, Any]
    return schema_of(typing.cast("type[Any]", kind)) if dataclasses.is_dataclass(kind) else kind


NameConfig: Any = dataclasses.make_dataclass("NameConfig", [("name", str, MISSING)])

_CHOSEN: Shape = (NameConfig, NameConfig)
_FREE: Shape = (dict[str, Any], dict)
Config: Any = schema_of(
    Spec,
    "Config",
    instead={
        "model": _FREE,
        "data": _FREE,
        "precision": _CHOSEN,
        "launcher": _CHOSEN,
        "batches": None,
        "batch_max": None,
        "pipeline": None,
        "batch": (Any, lambda: None),
        "run_dir": (typing.Optional[str], lambda: None),  # noqa: UP045
    },
)
"""What `scaling run` composes: a Spec with groups chosen by name, and `batch`, which is a list or `max`."""

WhatIfConfig: Any = dataclasses.make_dataclass(
    "WhatIfConfig",
    [("compute_scale", float, 1), ("gradient_compression", float, 1), ("without_straggler", bool, False)],
    bases=(Config,),
    namespace={"__module__": __name__},
)
"""What `scaling predict` composes."""

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


@contextlib.contextmanager
def shaped(where: object, group: str) -> Iterator[None]:
    """InputError where what a file holds has another shape than those of its group."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{where}: keys and values as in conf/{group}/ are expected ({error})") from error


def ascending(key: str, asked: Sequence[int]) -> tuple[int, ...]:
    """A list of numbers in order. InputError where one stands in it twice."""
    if len(set(asked)) < len(asked):
        raise InputError(f"{key}=[{','.join(map(str, asked))}]: each item once is expected")
    return tuple(sorted(asked))


def world_sizes_to(most: int, asked: Sequence[int], *, such_as: str, why: str = "") -> tuple[int, ...]:
    """World sizes in order. InputError where there is none, or one above `most`; `why` there is no more."""
    if not asked:
        raise InputError(f"world_sizes=[]: at least one world size is expected, such as {such_as}")
    for size in asked:
        if not 1 <= size <= most:
            raise InputError(f"world_sizes={list(asked)}: {size} is not between 1 and {most}{why}")
    return ascending("world_sizes", asked)


def check_batches(key: str, batch: int, world_sizes: Sequence[int], steps: int) -> None:
    """InputError where a step's samples, set by `key`, do not divide among ranks and accumulation `steps`."""
    if key == "batch_per_rank" and batch % steps:
        raise InputError(f"{key}={batch}: does not divide by accumulation_steps={steps}; use a multiple")
    for size in world_sizes if key == "global_batch" else ():
        if batch % (size * steps):
            raise InputError(
                f"{key}={batch}: does not divide by world size {size} x accumulation_steps {steps}; use a multiple"
            )
