"""What YAML may hold for a field of a frozen type, written beside the field: `steps: Annotated[int, AtLeast(1)]`.

`config.schema` makes Hydra's mutable dataclasses from these types and checks the bounds of what was asked for, so each
field is listed once. What is read from a file, `records.files` checks against HELD only, since the plans of traces and
of own loops hold no settings. Type checkers and everything else see the plain type.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A finite number that is `least` or more."""

    least: float


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `least` to `most`. It holds for what is read too: beyond it the program itself would fail."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Positive:
    """A finite number above 0."""

    such_as: str = ""


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number above 0 and at most 1."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few names. With `auto` YAML may also say `auto`, which is the default there."""

    accepted: tuple[str, ...]
    auto: bool = False


@dataclass(frozen=True, slots=True)
class Matches:
    """A text that `pattern` matches as a whole; `expected` describes such a text."""

    pattern: str
    expected: str


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A list of 1 to MOST items: a long one in a file of others would keep a reader busy for hours."""

    MOST: ClassVar[int] = 512
    such_as: str


@dataclass(frozen=True, slots=True)
class Named:
    """A name that may be part of a path, a command or a key: letters, digits, dots and dashes. It holds everywhere."""

    PATTERN: ClassVar[str] = r"[A-Za-z0-9][\w.-]{0,127}"


@dataclass(frozen=True, slots=True)
class Distinct:
    """A list that has no item twice."""


Bound = AtLeast | Between | Positive | Fraction | OneOf | Matches | NotEmpty | Distinct | Named
OF_LISTS = (NotEmpty, Distinct)
HELD = (Between, NotEmpty, Named)
"""Bounds that hold for every value, wherever it comes from."""


@dataclass(frozen=True, slots=True)
class Text:
    """YAML has a text under `key`, such as 200mbit; `parse(text, where)` makes the field's integer of it."""

    key: str
    parse: Callable[[str, str], int]
    show: Callable[[float], str]
    """The integer as text, for messages."""


@dataclass(frozen=True, slots=True)
class Nullable:
    """YAML may say null, which is the default there: the field's own default holds, or `config` works it out."""


def out_of_bounds(bounds: Iterable[Bound], value: Any, text: Text | None = None) -> tuple[Any, str] | None:
    """The first value that is out of a bound, and what is expected there; None where all is within.

    A tuple's bounds hold for each of its items, but for OF_LISTS. None is in any bound.
    """
    for bound in bounds:
        whole = isinstance(bound, OF_LISTS) or not isinstance(value, tuple)
        for item in (value,) if whole else value:
            wanted = None if item is None else _expected(bound, item, text)
            if wanted is not None:
                return item, wanted
    return None


def _expected(bound: Bound, value: Any, text: Text | None) -> str | None:
    """What is expected in place of a value; None where the value is accepted. NaN is in no bound of numbers."""
    match bound:
        case AtLeast(least) if not least <= value < float("inf"):
            from_on = text.show(least) if text else f"{least:g}"
            what = f"at least {from_on}" if value < least else f"a finite number from {from_on} on"
            return f"{what} is expected"
        case Between(least, most) if not least <= value <= most:
            return f"at least {least:g} is expected" if value < least else f"at most {most:g} is expected"
        case Positive(such_as) if not 0 < value < float("inf"):
            return f"a finite number above 0 is expected{f', such as {such_as}' if such_as else ''}"
        case Fraction() if not 0 < value <= 1:
            return "a fraction above 0 and up to 1 is expected, such as 0.8"
        case OneOf(accepted, auto) if value not in accepted and not (auto and value == "auto"):
            return f"one of {', '.join(('auto', *accepted) if auto else accepted)} is expected"
        case Matches(pattern, described) if not re.fullmatch(pattern, value):
            return described
        case Named() if not re.fullmatch(Named.PATTERN, value, re.ASCII):
            return "a name of letters, digits, dots and dashes is expected"
        case NotEmpty(such_as) if not value:
            return f"at least one item is expected, such as {such_as}"
        case NotEmpty() if len(value) > NotEmpty.MOST:
            return f"at most {NotEmpty.MOST} items are expected"
        case Distinct() if len(set(value)) < len(value):
            return "each item once is expected"
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A field of a frozen type and what YAML may hold for it."""

    name: str
    key: str
    """Its name in YAML."""
    type: Any
    """The plain type, without None."""
    optional: bool
    """Whether the frozen field can be None."""
    bounds: tuple[Bound, ...]
    text: Text | None
    nullable: bool
    default: Any
    """A function that makes the default, or None where the field has none."""


def settings(kind: type) -> tuple[Setting, ...]:
    """The fields of a frozen dataclass, in their order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(_setting(field, hints[field.name]) for field in fields(kind))


def _setting(field: Field[Any], hint: Any) -> Setting:
    notes: list[Any] = []
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
    optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
    if optional:
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    text = next((note for note in notes if isinstance(note, Text)), None)
    default = None if field.default_factory is MISSING else field.default_factory
    if field.default is not MISSING:
        default = lambda: field.default  # noqa: E731
    return Setting(
        name=field.name,
        key=field.name if text is None else text.key,
        type=hint,
        optional=optional,
        bounds=tuple(note for note in notes if isinstance(note, Bound)),
        text=text,
        nullable=any(isinstance(note, Nullable) for note in notes),
        default=default,
    )
