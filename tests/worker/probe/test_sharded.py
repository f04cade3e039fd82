"""A probe in real sharded trainings on four ranks: what it changes (nothing), what it leaves, what it says."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # many trainings of four ranks

SCRIPT = Path(__file__).with_name("sharded_ranks.py")
RANKS = 4
BLOCK, ROOT = (256 * 256 + 256) * 4, (256 * 4 + 4) * 4
WHOLE = 3 * BLOCK + ROOT


def sent(analysis):
    """Bytes of a step by kind, phase and communicator."""
    found = analysis.points[0].comm.collectives
    return {(one.kind, one.phase, one.communicator): one.bytes for one in found}


@pytest.mark.parametrize("name", ["fsdp", "hsdp"])
def test_losses_and_weights_are_bitwise_what_they_are_without(ranks, name):
    for rank in ranks:
        with_it, without = rank[f"{name} probed"], rank[name]
        assert with_it["losses"] == without["losses"]
        assert with_it["weights"] == without["weights"]
        assert with_it["left"] == without["left"]  # no method, call, hook or kernel


def test_every_collective_is_counted_to_the_byte(found):
    assert sent(found("fsdp")) == {
        ("all_gather", "forward", "shard"): WHOLE,
        ("all_gather", "backward", "shard"): 3 * BLOCK,  # the root keeps its parameters
        ("reduce_scatter", "backward", "shard"): WHOLE,
    }
    assert sent(found("kept")) == {
        ("all_gather", "forward", "shard"): WHOLE,
        ("reduce_scatter", "backward", "shard"): WHOLE,
    }
    assert sent(found("separate")) == sent(found("fsdp"))


def test_copies_are_reduced_in_the_last_micro_step_alone(found):
    analysis = found("hsdp")
    mesh = analysis.points[0].parallel
    assert (mesh.strategy, mesh.replicate, mesh.shard) == ("hsdp", 2, 2)
    assert sent(analysis) == {
        ("all_gather", "forward", "shard"): 2 * WHOLE,
        ("all_gather", "backward", "shard"): 2 * 3 * BLOCK,
        ("reduce_scatter", "backward", "shard"): 2 * WHOLE,
        ("all_reduce", "backward", "replicate"): WHOLE // 2,
    }


@pytest.mark.parametrize(("name", "like"), [("each", 1), ("each_hsdp", 2)])
def test_micro_steps_around_which_step_is_put_are_joined_to_one_step(found, name, like):
    analysis = found(name)
    assert analysis.points[0].step_ms is not None
    assert sent(analysis)["all_gather", "forward", "shard"] == 2 * WHOLE
    assert sent(analysis)["reduce_scatter", "backward", "shard"] == like * WHOLE
    assert not any("an optimizer stepped in" in line for line in analysis.quality.warnings)


def test_what_the_loop_itself_sends_is_named_apart(found):
    (said,) = (line for line in found("kept").quality.warnings if "other than the model's own" in line)
    assert said.startswith("a step has 1 collective other than the model's own")  # the norm of the gradients


def test_parts_add_up_to_the_step_and_blocks_are_whole(found):
    for name in ("fsdp", "hsdp", "late"):
        analysis = found(name)
        parts = analysis.points[0].parts_ms
        names = ("input", "forward", "backward", "exposed_transfer", "exposed_skew", "optimizer", "host")
        whole = sum(getattr(parts, one).value for one in names)
        probed = analysis.points[0].arms_ms.probe.value
        assert whole == pytest.approx(probed, rel=1e-6)
        assert analysis.quality.dropped_blocks == 0
        assert analysis.points[0].efficiency is None  # no rank had the whole model


def test_what_cannot_be_seen_is_said_and_the_training_goes_on(ranks):
    first, *others = (rank["said"] for rank in ranks)
    assert "no rank has the whole of a sharded model" in first["baseline"][0]
    assert "`scaling analyze" in first["divided"][0]
    assert others == [{"baseline": [], "divided": []}] * 3  # rank 0 speaks for all


def test_layers_that_are_divided_over_ranks_are_followed_by_their_waits(found):
    point = found("divided").points[0]
    assert point.parallel.strategy == "own"
    assert point.parts_ms.exposed_transfer.value + point.parts_ms.exposed_skew.value > 0
