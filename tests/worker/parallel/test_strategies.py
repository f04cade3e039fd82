"""Every strategy on two and four real ranks, with accumulation: it trains as one rank with the whole batch does."""

from collections import Counter
from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks

pytestmark = pytest.mark.slow  # four ranks train eleven times

SCRIPT = Path(__file__).with_name("strategy_ranks.py")
EXACT = ("ddp", "fsdp", "hsdp", "fsdp keeps", "fsdp of two", "fsdp ahead", "fsdp by itself", "fsdp in one")
AGAIN = ("fsdp again", "hsdp again")
ROOT, BLOCK = 4 * (6 * 24 + 24 + 24 * 3 + 3), 4 * (24 * 24 + 24 + 2 * 24)
"""Bytes of what is in no block, and of a block."""
PADDING = 4 * 25
"""Bytes at most by which the root's uneven parameters are padded: the tail's weight and bias to four rows."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(SCRIPT, 4, tmp_path_factory.mktemp("ranks") / "store", 4)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_ranks(SCRIPT, 2, tmp_path_factory.mktemp("two") / "store", 2)


def calls(found):
    return Counter((kind, phase, tuple(members)) for kind, phase, _, _, members in found["rows"])


@pytest.mark.parametrize("name", [*EXACT, *AGAIN])
def test_losses_gradients_and_weights_are_those_of_one_rank(ranks, name):
    for rank in ranks:
        assert rank[name]["loss"] < 1e-6
        assert rank[name]["gradients"] < 1e-6
        assert rank[name]["weights"] < 1e-6


def test_units_of_one_class_and_later_modules_share_their_graphs(two):
    """Three blocks, forward with gradients, in two modules over two ranks."""
    for rank in two:
        found = rank["fsdp compiled"]
        assert (found["graphs"], found["graphs of two"]) == (1, 1)
        assert rank["fsdp"]["graphs"] == 0


@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp compiled"])
def test_and_on_two_ranks(two, name):
    for rank in two:
        assert rank[name]["loss"] < 1e-6
        assert rank[name]["gradients"] < 1e-6
        assert rank[name]["weights"] < 1e-6


@pytest.mark.parametrize("name", EXACT)
def test_what_a_rank_holds_is_what_the_mesh_says(ranks, name):
    for rank in ranks:
        computed = {key: size for key, size in rank[name]["computed"].items() if key != "unsharded"}
        assert rank[name]["holds"] == computed


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "fsdp keeps", "fsdp ahead"])
def test_what_is_gathered_at_once_is_what_the_settings_say(ranks, name):
    for rank in ranks:
        held, computed = rank[name]["unsharded"], rank[name]["computed"]["unsharded"]
        assert computed <= held <= computed + PADDING
    units = {"fsdp": 2, "hsdp": 2, "fsdp keeps": 3, "fsdp ahead": 3}[name]
    assert ranks[0][name]["computed"]["unsharded"] == ROOT + units * BLOCK


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "fsdp ahead"])
def test_a_second_module_makes_no_communicators_of_its_own(ranks, name):
    assert [rank[name]["new groups"] for rank in ranks] == [0, 0, 0, 0]


def test_gradients_reduced_in_bf16_are_near(ranks):
    assert all(1e-6 < rank["bf16"]["gradients"] < 1e-2 for rank in ranks)


def test_in_fp16_all_ranks_leave_out_the_step_in_which_one_overflows(ranks):
    """The scaler's flag is that of the rank that overflowed, over shards and copies, so all have one scale."""
    for rank in ranks:
        scales, moved, losses = zip(*rank["fp16"], strict=True)
        assert list(moved) == [True, False, True, True]
        assert [scale / scales[0] for scale in scales] == [1.0, 0.5, 0.5, 0.5]
        assert all(0 < loss < 10 for loss in losses)


def test_fsdp_gathers_each_unit_forward_and_backward_and_reduces_it_once(ranks):
    everybody = (0, 1, 2, 3)
    assert calls(ranks[1]["fsdp"]) == {
        ("all_gather", "forward", everybody): 4,
        ("all_gather", "backward", everybody): 3,  # the root keeps its own
        ("reduce_scatter", "backward", everybody): 4,
    }


def test_bytes_are_those_of_the_units(ranks):
    rows = ranks[0]["fsdp"]["rows"]
    by_unit = {(kind, unit): size for kind, _, unit, size, _ in rows}
    assert ranks[0]["fsdp"]["units"] == ["root", "blocks.0", "blocks.1", "blocks.2"]
    assert ranks[0]["fsdp"]["whole"] == [ROOT, BLOCK, BLOCK, BLOCK]
    assert {by_unit["all_gather", 1], by_unit["reduce_scatter", 1]} == {BLOCK}
    assert by_unit["all_gather", 0] == by_unit["reduce_scatter", 0] > ROOT  # uneven parameters are padded


def test_hsdp_shards_within_a_group_and_reduces_over_the_copies(ranks):
    for rank, found in enumerate(ranks):
        shard = (0, 1) if rank < 2 else (2, 3)
        copies = (0, 2) if rank % 2 == 0 else (1, 3)
        assert calls(found["hsdp"]) == {
            ("all_gather", "forward", shard): 4,
            ("all_gather", "backward", shard): 3,
            ("reduce_scatter", "backward", shard): 4,
            ("all_reduce", "backward", copies): 4,
        }
    halves = [size for kind, _, unit, size, _ in ranks[0]["hsdp"]["rows"] if kind == "all_reduce" and unit]
    assert halves == [BLOCK // 2] * 3


def test_without_resharding_nothing_is_gathered_in_backward(ranks):
    assert {phase for kind, phase, *_ in ranks[0]["fsdp keeps"]["rows"] if kind == "all_gather"} == {
        "forward"
    }


def test_parameters_kept_in_part_are_gathered_among_fewer_ranks(ranks):
    gathered = [row for row in ranks[3]["fsdp of two"]["rows"] if row[0] == "all_gather" and row[2]]
    members = {(phase, tuple(ranks)) for _, phase, _, _, ranks in gathered}
    assert members == {("forward", (0, 1, 2, 3)), ("backward", (2, 3))}


def test_checkpointing_gathers_no_unit_twice_in_backward(ranks):
    assert calls(ranks[0]["fsdp again"]) == calls(ranks[0]["fsdp"])


def test_every_rank_tells_the_same_collectives_in_the_same_order(ranks):
    for name in ("fsdp", "hsdp", "fsdp ahead"):
        assert len({str([row[:4] for row in rank[name]["rows"]]) for rank in ranks}) == 1


def test_stamps_are_in_order_every_collective_is_waited_for_and_nothing_is_left_behind(ranks):
    for rank in ranks:
        for name in (*EXACT[1:], *AGAIN):
            assert rank[name]["stamps"]
            assert rank[name]["waited"]
            assert 0 < sum(rank[name]["waits"]) < 1
            assert rank[name]["left"] == []


def test_a_rank_holds_its_shards(ranks):
    whole = ROOT + 3 * BLOCK
    assert sum(rank["fsdp"]["held"]["parameters"] for rank in ranks) == whole
    assert sum(rank["hsdp"]["held"]["parameters"] for rank in ranks) == 2 * whole


def test_units_by_class_and_the_rest_in_the_root(ranks):
    assert ranks[0]["fsdp in one"]["units"] == ["root", "tail"]
