"""What a request by cases comes to, and the search for the largest batch against a memory that is known."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.cli.verbs.plan import describe
from scaling.config.compose import requests
from scaling.records.paths import RunFolder
from scaling.settings.cases import (
    FAILED,
    FITS,
    OOM,
    Try,
    Variant,
    VariantSearch,
    cases,
    ladder,
    round_stretches,
    stages,
    step,
    variants,
)
from scaling.settings.plan import make_plan


def spec(*overrides):
    local = ("model=mlp", "topology=local", "topology.device=cpu", "topology.ranks_per_host=2")
    (request,) = requests("plan", [*local, *overrides]).items
    return request.spec


def test_inference_in_bf16_runs_with_and_without_autocast():
    found = variants(spec("task=inference", "vary.precision=[fp32,bf16]", "vary.compile=[false,true]"))
    assert [(v.precision, v.autocast, v.compile) for v in found] == [
        ("fp32", False, False),
        ("fp32", False, True),
        ("bf16", True, False),
        ("bf16", True, True),
        ("bf16", False, False),
        ("bf16", False, True),
    ]


def test_a_table_of_equal_batches_has_every_combination():
    found = cases(
        spec("batch_per_rank=8", "vary.accumulation_steps=[1,2]", "vary.checkpointing=[false,true]")
    )
    assert {c.batch for c in found} == {8}
    assert len(found) == 4


def test_what_is_not_varied_is_as_set():
    assert [v.compile for v in variants(spec("task=inference", "compile=true"))] == [True]
    assert [
        v.checkpointing for v in variants(spec("batch=max", "memory_limit=1GiB", "checkpointing=true"))
    ] == [True]
    both = spec("checkpointing=true", "vary.checkpointing=[false,true]")
    assert [v.checkpointing for v in variants(both)] == [False, True]


def test_training_takes_one_world_size_after_the_other_and_replicas_alternate():
    assert stages(spec("batch=[1,2]", "world_sizes=[1,2]")) == ((1,), (2,))
    assert stages(spec("task=inference", "world_sizes=[1,2]")) == ((1, 2),)


def test_a_round_visits_every_case_once_and_is_the_same_on_every_rank():
    asked = spec("task=inference", "batch=[1,2]", "world_sizes=[1,2]")
    alive = ((1, 0), (1, 1), (2, 0), (2, 1))
    one, again, other = (round_stretches(asked, 0, 0, number, alive) for number in (0, 0, 1))
    assert one == again
    assert sorted((s.world_size, s.case) for s in one) == sorted(alive)
    assert not {s.id for s in one} & {s.id for s in other}


def test_no_two_stretches_of_a_launch_have_one_id_however_many_a_round_has():
    asked = spec("task=inference", "batch=[1]", "world_sizes=[1]")
    many, few = tuple((1, case) for case in range(1500)), ((1, 0),)
    rounds = [
        round_stretches(asked, 0, stage, number, alive)
        for stage, alive in enumerate((many, few))
        for number in range(4)
    ]
    ids = [stretch.id for stretches in rounds for stretch in stretches]
    assert len(ids) == len(set(ids)) == 4 * (1500 + 1)


@pytest.mark.parametrize(
    ("largest", "unit", "rungs"),
    [
        (1, 1, (1,)),
        (11, 1, (1, 2, 4, 8, 11)),
        (12, 2, (2, 4, 8, 12)),
        (500, 1, (1, 4, 16, 64, 256, 500)),
        (0, 1, ()),
    ],
)
def test_throughput_is_measured_up_to_the_largest_batch(largest, unit, rungs):
    assert ladder(largest, unit) == rungs


def search(limit, unit=1):
    found = VariantSearch(variant=Variant(precision="fp32", autocast=False, accumulation_steps=unit))
    while (batch := found.next) is not None:
        assert batch % unit == 0
        assert batch not in {t.batch for t in found.tries}
        tried = Try(batch=batch, status=FITS if batch <= limit else OOM)
        found = dataclasses.replace(found, tries=(*found.tries, tried))
    return found


@given(limit=st.integers(0, 5000), unit=st.integers(1, 5))
def test_a_search_ends_within_a_step_below_the_limit(limit, unit):
    found = search(limit, unit)
    assert found.found <= limit
    assert limit - found.found < step(found.found, unit) + unit
    assert len(found.tries) <= 2 * 14


def test_a_limit_that_nothing_reaches_ends_the_search_too():
    assert search(10**9).found == 2**20


def found_with(*tries):
    return VariantSearch(variant=Variant(precision="fp32", autocast=False), tries=tries)


def test_what_is_too_small_to_train_with_is_neither_too_large_nor_measured():
    failed = Try(batch=1, status=FAILED)
    assert found_with(failed).next == 2
    assert found_with(failed, Try(batch=2, status=FITS)).next == 4
    largest = found_with(failed, *(Try(batch=n, status=FITS) for n in (2, 4, 6)), Try(batch=7, status=OOM))
    assert (largest.next, largest.too_large, largest.candidate) == (None, 7, 6)
    assert largest.rungs == (2, 4, 6)


def test_where_two_do_not_fit_and_one_cannot_train_nothing_is_left():
    none = found_with(Try(batch=1, status=FAILED), Try(batch=2, status=OOM))
    assert (none.next, none.candidate, none.rungs) == (None, 0, ())
    refuted = dataclasses.replace(
        found_with(Try(batch=1, status=FAILED), Try(batch=2, status=FITS)), refuted=(2,)
    )
    assert refuted.candidate == 0


def test_what_could_not_be_proved_is_tried_a_step_lower():
    found = search(100)
    assert (found.found, found.candidate) == (100, 100) or found.candidate == found.found
    lower = dataclasses.replace(found, refuted=(found.candidate,))
    assert found.candidate - 5 <= lower.candidate < found.candidate


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("task=inference", "batch=[1,8]"), "fp32, batch 1, 8, each a rank; inference"),
        (("vary.precision=[fp32,bf16]",), "fp32, bf16, batch 32, each a rank; train"),
        (
            ("batch=max", "memory_limit=2GiB"),
            "fp32, batch the largest that fits, and up to it, in 2 GiB a rank, each a rank; train",
        ),
    ],
)
def test_the_plan_of_cases_says_their_task_and_batches(tmp_path, overrides, said):
    plan = make_plan(spec(*overrides), run_id="id", created="2026-01-02T03:04:05", version="0.1")
    model = describe(plan, RunFolder(tmp_path)).splitlines()[0]
    assert model.endswith(f"}}, {said}")
