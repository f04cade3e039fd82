"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.results import Loss, Measured, Point, Remedy, Straggler, Verdict
from scaling.records import files
from scaling.settings.bounds import Between, NotEmpty
from scaling.settings.plan import Plan, Trial, make_plan
from scaling.settings.run import Tracking


@dataclass(frozen=True)
class Leaf:
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Tree:
    name: str
    try_: tuple[Leaf, ...] = ()
    best: Leaf | None = None
    by_name: dict[str, Leaf] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Bounded:
    ranks: Annotated[int, Between(1, 8)] = 1
    shares: Annotated[tuple[float, ...] | None, Between(0, 1), NotEmpty("one")] = None


words = st.text(max_size=4)
leaf = st.builds(Leaf, count=st.integers(), share=st.floats(allow_nan=False, allow_infinity=False))
trees = st.builds(
    Tree,
    name=words,
    try_=st.lists(leaf, max_size=3).map(tuple),
    best=st.none() | leaf,
    by_name=st.dictionaries(words, leaf, max_size=3),
    sizes=st.lists(st.integers(), max_size=3),
)


@given(trees)
def test_what_was_written_is_read(tree):
    assert files.decode(Tree, json.loads(json.dumps(files.encode(tree)))) == tree


def test_a_trailing_underscore_is_dropped_in_json():
    assert files.encode(Tree("x", try_=(Leaf(1),)))["try"] == [{"count": 1, "share": 0.5}]
    assert files.decode(Tree, {"name": "x", "try": [{"count": 1}]}).try_ == (Leaf(1),)


def test_missing_keys_take_their_default():
    assert files.decode(Tree, {"name": "x"}) == Tree("x")


def test_a_missing_key_without_default_is_an_error():
    with pytest.raises(TypeError, match="name"):
        files.decode(Tree, {})


def test_settings_that_are_gone_are_left_out():
    earlier = {"mode": "online", "alerts": True, "objective": "efficiency"}
    assert files.decode(Tracking, earlier) == Tracking(mode="online")


def test_an_unknown_key_says_where_it_stands():
    with pytest.raises(ValueError, match=r"Tree\.try\[1\]: unknown key 'colour'"):
        files.decode(Tree, {"name": "x", "try": [{"count": 1}, {"count": 2, "colour": "red"}]})
    with pytest.raises(ValueError, match=r"Tree\.by_name\.a: unknown key"):
        files.decode(Tree, {"name": "x", "by_name": {"a": {"count": 1, "colour": "red"}}})


def test_a_value_in_place_of_an_object_is_an_error():
    with pytest.raises(ValueError, match=r"Tree\.best: expected an object, found int"):
        files.decode(Tree, {"name": "x", "best": 3})


def test_whole_numbers_are_floats_where_floats_are_due():
    found = files.decode(Leaf, {"count": 1, "share": 1})
    assert isinstance(found.share, float)


def test_the_plan_comes_back(cluster):
    plan = make_plan(cluster.spec_of(cluster.Truth()), run_id="id", created="now", version="1")
    assert files.decode(Plan, json.loads(json.dumps(files.encode(plan)))) == plan
    assert plan.trials[0] == Trial(world_size=1, hosts=1, batch=32)


def test_results_come_back():
    number = Measured(1.5, 1.0, 2.0, 8)
    late = Straggler(rank=1, phase="input", by_itself=None, cost_ms=number, skew_ms=Measured(3.0))
    point = Point(
        world_size=2, hosts=2, status="done", step_ms=number, straggler=late, loss=Loss(overlap=number)
    )
    assert files.decode(Point, files.encode(point)) == point
    verdict = Verdict(
        cause="overlap",
        world_size=2,
        share=None,
        confidence="low",
        evidence=("a", "b"),
        try_=(Remedy(overrides="a=1", code="x"),),
    )
    assert files.decode(Verdict, files.encode(verdict)) == verdict


def test_a_number_is_its_value_interval_and_count():
    assert files.encode(Measured(1.5, 1.0, 2.0, 8)) == {"value": 1.5, "low": 1.0, "high": 2.0, "n": 8}
    assert files.encode(Measured(1.5, n=2)) == {"value": 1.5, "low": None, "high": None, "n": 2}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"ranks": 0}, "Bounded.ranks=0: at least 1 is expected"),
        ({"ranks": 10**9}, "Bounded.ranks=1000000000: at most 8 is expected"),
        ({"shares": [0.5, 2]}, "Bounded.shares=2.0: at most 1 is expected"),
        ({"shares": []}, "at least one item is expected"),
        ({"shares": [0.5] * 513}, "at most 512 items are expected"),
        ({"shares": "ab"}, "Bounded.shares: expected a list, found str"),
        ({"shares": {"a": 1}}, "Bounded.shares: expected a list, found dict"),
    ],
)
def test_what_is_out_of_the_bounds_beside_a_field_is_an_error(document, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        files.decode(Bounded, document)


def test_none_and_what_is_within_are_in_bounds():
    assert files.decode(Bounded, {"ranks": 8, "shares": None}) == Bounded(8)
    assert files.decode(Bounded, {"shares": [1, 0.5]}) == Bounded(1, (1.0, 0.5))
