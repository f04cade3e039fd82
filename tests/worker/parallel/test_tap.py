"""A tap on two real ranks: it sees the collectives of DDP, of FSDP and by hand, and changes nothing."""

import sys
from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks
from support.processes import captured

pytestmark = pytest.mark.slow  # two ranks train six times

LAYER, LAYERS = 64 * 64 * 4, 3
"""Bytes of a layer's weights."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    script = Path(__file__).with_name("tap_ranks.py")
    return run_ranks(script, 2, tmp_path_factory.mktemp("ranks") / "store")


def seen(found, name):
    return [(row["kind"], row["bytes"]) for row in found[name]["rows"]]


def test_both_ranks_see_the_same_in_the_same_order(ranks):
    assert ranks[0] == ranks[1]


@pytest.mark.parametrize("name", ["ddp", "buffers", "fsdp"])
def test_the_training_is_the_same_to_the_bit(ranks, name):
    assert ranks[0][name]["same"]


def test_buckets_of_ddp(ranks):
    assert seen(ranks[0], "ddp") == [("all_reduce", LAYER)] * LAYERS


def test_buffers_of_batch_norm_and_the_map_of_used_parameters(ranks):
    statistics, counter, gradients, used = 2 * 8 * 4, 8, (8 * 8 + 8 + 8 + 5) * 4, 4 * 4
    assert seen(ranks[0], "buffers") == [
        ("broadcast", statistics),
        ("broadcast", counter),
        ("all_reduce", gradients),
        ("all_reduce", used),
    ]


def test_units_of_fsdp_are_gathered_twice_and_reduced_once(ranks):
    kinds = [kind for kind, _ in seen(ranks[0], "fsdp")]
    assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (2 * LAYERS, LAYERS)
    assert {size for _, size in seen(ranks[0], "fsdp")} == {LAYER}


def test_calls_by_hand_by_kind_and_by_the_bytes_of_nccl_tests(ranks):
    assert [(row["kind"], row["bytes"]) for row in ranks[0]["by_hand"]] == [
        ("all_reduce", 64),
        ("all_reduce", 64),
        ("all_gather", 128),
        ("reduce_scatter", 64),
        ("all_to_all", 64),
        ("broadcast", 64),
    ]
    assert [row["waited"] for row in ranks[0]["by_hand"]] == [True, False, True, True, True, True]


def test_every_one_has_its_stamps_in_order(ranks):
    rows = [row for name in ("ddp", "buffers", "fsdp") for row in ranks[0][name]["rows"]]
    assert all(row["stamps"] for row in (*rows, *ranks[0]["by_hand"]))


def test_closed_it_sees_nothing_and_is_gone(ranks):
    assert (ranks[0]["after"], ranks[0]["left"]) == (0, False)


def test_collectives_around_a_compiled_graph_are_noted_and_not_compiled():
    rank = Path(__file__).with_name("compiled_rank.py")
    done = captured([sys.executable, str(rank)], timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[(12, True), (16, True)]"
