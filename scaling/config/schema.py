"""The shape of the Hydra config, made from the frozen types of `scaling.spec`.

Hydra needs mutable dataclasses and knows neither Literal nor tuples. The fields, their defaults and their
explanations are those of scaling/spec/run.py, topology.py and cluster.py; this module lists only what YAML has
in another shape.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from scaling.spec.run import Spec
from scaling.spec.settings import OneOf, Setting, settings

MISSING: Any = "???"
"""OmegaConf's mark of a mandatory value."""

Composed: typing.TypeAlias = Any
"""An instance of a schema. `scaling.config.values.freeze` makes a frozen, typed object of it."""

Shape = tuple[Any, Callable[[], Any]]
"""A field's type in YAML, and a function that makes its default."""


def schema_of(
    kind: type, name: str = "", *, instead: Mapping[str, Shape | None] | None = None, also: Any = None
) -> Any:
    """The mutable dataclass with the fields of `kind`, as YAML has them.

    `instead` replaces fields, or leaves them out with None; `also` adds fields.
    """
    shapes: dict[str, Shape | None] = {
        s.key: _shape(s) for s in settings(kind) if s.name not in (instead or {})
    }
    shapes |= instead or {}
    shapes |= also or {}
    fields = [(key, *_field(shape)) for key, shape in shapes.items() if shape is not None]
    return dataclasses.make_dataclass(
        name or f"{kind.__name__}Config", fields, namespace={"__module__": __name__}
    )


def _field(shape: Shape) -> tuple[Any, Any]:
    return shape[0], dataclasses.field(default_factory=shape[1])


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


def _null() -> None:
    return None


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
    },
    also={"batch": (Any, _null), "run_dir": (typing.Optional[str], _null)},  # noqa: UP045
)
"""What `scaling run` composes: a Spec with groups chosen by name, and `batch`, which is a list or `max`."""

WhatIfConfig: Any = dataclasses.make_dataclass(
    "WhatIfConfig",
    [("compute_scale", float, 1), ("gradient_compression", float, 1), ("without_straggler", bool, False)],
    bases=(Config,),
    namespace={"__module__": __name__},
)
"""What `scaling predict` composes."""
