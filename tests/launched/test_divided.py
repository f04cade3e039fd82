"""Launches whose ranks divide layers: side by side with others, by tokens, and beside the other ways to train."""

import json

import pytest

pytestmark = [pytest.mark.slow]

QUICK = ("topology=local", "topology.device=cpu", "measure=quick", "tracking=disabled", "run_dir=run")
SYNTHETIC = (
    "model=synthetic",
    "model.param_mb=4",
    "model.layers=4",
    "model.compute_ms=40",
    "model.activations=1024",
)
SMALL = ("model=gpt2", "model.layers=2", "model.width=64", "model.heads=4", "model.vocabulary=256")


def sent(point):
    """(kind, phase, communicator) -> calls of a step."""
    return {(c["kind"], c["phase"], c["communicator"]): c["calls"] for c in point["comm"]["collectives"]}


@pytest.fixture(scope="module")
def side_by_side(scaling, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("divided")
    meshes = "vary.parallel=[ddp,tp,fsdp_tp]"
    size = ("topology.ranks_per_host=4", "world_sizes=[4]", "measure.budget_s=60")
    done = scaling("run", *QUICK, *SYNTHETIC, *size, "parallel=tp", "parallel.sequence=true", meshes, cwd=cwd)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads((cwd / "run/analysis.json").read_text())["strategies"]


def test_meshes_that_divide_layers_are_measured_beside_others(side_by_side):
    meshes = [
        tuple(one["parallel"][axis] for axis in ("replicate", "shard", "tensor")) for one in side_by_side
    ]
    assert meshes == [(4, 1, 1), (1, 1, 4), (1, 2, 2)]
    ddp, *others = side_by_side
    for one in others:
        ratio = one["against_first"][-1]["throughput"]["value"]
        rates = [strategy["points"][-1]["samples_per_s"]["value"] for strategy in (one, ddp)]
        assert ratio == pytest.approx(rates[0] / rates[1], rel=0.1)


def test_divided_by_tokens_a_layer_gathers_and_scatters(side_by_side):
    found = sent(side_by_side[1]["points"][-1])
    assert found == {
        ("all_gather", "forward", "tensor"): 5,
        ("reduce_scatter", "forward", "tensor"): 4,
        ("all_gather", "backward", "tensor"): 5,
        ("reduce_scatter", "backward", "tensor"): 4,
    }
    assert {one["kind"] for one in side_by_side[1]["points"][-1]["loss_by_kind"]} == {"tensor"}


def test_shards_and_tensor_groups_have_waits_of_their_own(side_by_side):
    rows = side_by_side[2]["points"][-1]["comm"]["collectives"]
    assert {one["communicator"] for one in rows} == {"shard", "tensor"}
    assert all(one["exposed_skew_ms"]["value"] >= 0 for one in rows)


def test_divided_layers_train_with_bf16_checkpointing_and_accumulation(scaling, tmp_path):
    asked = ("precision=bf16", "checkpointing=true", "accumulation_steps=2", "batch_per_rank=4")
    size = (
        "topology.ranks_per_host=2",
        "world_sizes=[1,2]",
        "measure.budget_s=120",
        "model.sequence=64",
        "measure.rounds_max=3",
    )
    done = scaling("run", *QUICK, *SMALL, *asked, *size, "parallel=tp", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    point = json.loads((tmp_path / "run/analysis.json").read_text())["points"][-1]
    assert point["step_ms"]["value"] > 0
    # Each micro-step: two layers with two sums forward and two backward. In backward the checkpoint does both forward
    # sums again, since the dropout after each keeps its mask.
    assert sent(point) == {("all_reduce", "forward", "tensor"): 8, ("all_reduce", "backward", "tensor"): 16}


def test_what_cannot_be_divided_is_refused_before_a_launch(scaling, tmp_path):
    size = ("topology.ranks_per_host=3", "world_sizes=[3]")
    done = scaling("run", *QUICK, *SMALL, *size, "parallel=tp", cwd=tmp_path)
    assert done.returncode == 2
    assert "parallel.tensor=3: does not divide the model's 4" in done.stderr
    assert not (tmp_path / "run").exists()
