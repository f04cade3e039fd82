"""Hydra's schema is made from the frozen types, and frozen objects are made from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from scaling.config.schema import MISSING, Config, check, freeze, schema_of
from scaling.errors import InputError
from scaling.settings.bounds import AtLeast, Fraction, Matches, NotEmpty, Nullable, OneOf, Positive, Text
from scaling.settings.run import Spec
from scaling.units import format_rate, parse_rate_bit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    name: str
    rate_bit_s: Annotated[int | None, Text("rate", parse_rate_bit_s, format_rate), AtLeast(1000)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    wires: tuple[Wire, ...] = ()
    desks: Annotated[int, AtLeast(1), Nullable()]
    light: Annotated[str, OneOf(("on", "off"), auto=True)]
    used: Annotated[float, Fraction()] = 0.5
    price: Annotated[float, Positive(such_as="2.5")] = 1.0
    rows: tuple[tuple[int, ...], ...] = ()
    doors: Annotated[
        tuple[str, ...], NotEmpty("[oak]"), Matches("[a-z]+", "a lower-case word is expected")
    ] = ("oak",)


RoomConfig, WireConfig = schema_of(Room), schema_of(Wire)


def room(**changes):
    """A composed config of a room."""
    return RoomConfig(**{"light": "on", "desks": 2, **changes})


def test_a_schema_is_mutable_and_has_lists_and_texts_where_the_frozen_type_has_tuples_and_units():
    made = {field.name: field.type for field in fields(RoomConfig)}
    assert made["rows"] == list[list[int]]
    assert made["doors"] == list[str]
    assert made["desks"] == int | None
    assert [field.name for field in fields(WireConfig)] == ["name", "rate"]
    config = RoomConfig()
    config.used = 1.0
    assert (config.desks, config.light, config.doors, config.wires) == (None, "auto", ["oak"], [])
    assert WireConfig().name == MISSING


def test_two_configs_share_no_list():
    RoomConfig().doors.append("pine")
    assert RoomConfig().doors == ["oak"]


def test_a_config_is_frozen_with_what_was_worked_out():
    config = room(wires=[WireConfig(name="a", rate="2kbit")], rows=[[1, 2], [3]], desks=None)
    assert freeze(Room, config, desks=4, light="off") == Room(
        wires=(Wire(name="a", rate_bit_s=2000),), rows=((1, 2), (3,)), desks=4, light="off"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"desks": 0}, "room.desks=0: at least 1 is expected"),
        ({"light": "dim"}, "room.light=dim: one of auto, on, off is expected"),
        ({"used": 1.5}, "room.used=1.5: a fraction above 0 and up to 1 is expected, such as 0.8"),
        ({"price": float("nan")}, "room.price=nan: a finite number above 0 is expected, such as 2.5"),
        ({"price": float("inf")}, "room.price=inf: a finite number above 0 is expected, such as 2.5"),
        ({"doors": []}, "at least one item is expected, such as [oak]"),
        ({"doors": ["oak", "Pine"]}, "room.doors=Pine: a lower-case word is expected"),
        (
            {"wires": [WireConfig(name="a", rate="9bit")]},
            "room.wires.0.rate=9bit: at least 1 kbit/s is expected",
        ),
        ({"wires": [WireConfig(name="a", rate="fast")]}, "room.wires.0.rate=fast: not a link rate"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_what_is_accepted(changes, said):
    with pytest.raises(InputError) as refused:
        check(Room, room(**changes), "room")
    assert said in str(refused.value)


def test_a_value_that_was_worked_out_is_checked_too():
    with pytest.raises(InputError, match="desks=0: at least 1"):
        freeze(Room, room(), desks=0)


def test_the_root_has_the_fields_of_a_spec():
    ours = {field.name for field in fields(Config)}
    theirs = {field.name for field in fields(Spec)}
    assert ours - theirs == {"batch", "run_dir", "memory_limit"}
    assert theirs - ours == {"batches", "batch_max", "memory_limit_bytes", "pipeline"}
