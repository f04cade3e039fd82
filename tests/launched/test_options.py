"""Training options in a real run: every arm has them, and the bytes are those that were sent."""

import json

import pytest

LOCAL = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "world_sizes=[2]",
    "measure=quick",
    "measure.budget_s=30",
    "measure.rounds_max=3",
    "tracking=disabled",
)


def payload_of(run):
    return json.loads((run / "launches/0/env-0.json").read_text())["parameter_bytes"]


@pytest.mark.slow
def test_half_precision_on_the_wire_with_checkpoints_and_a_fused_optimizer(measured, point_of):
    run, done = measured(
        *LOCAL,
        "model=highmem_cnn batch_per_rank=4 accumulation_steps=2 channels_last=true",
        "checkpointing=true fused_optimizer=true ddp.comm_hook=fp16 --verbose",
    )
    point = point_of(run, 2)
    assert point["comm"]["bytes_per_step"] == payload_of(run) // 2  # once a step, too
    assert point["closure"] is not None
    assert point["memory"]["peak_bytes"] > 50 * 2**20  # a torch process, resident
    assert point["memory"]["communicators_bytes"] is None
    said = " ".join(done.stdout.split())
    assert "channels_last=true" in said
    assert "ddp.comm_hook=fp16" in said
    assert "a rank at most (resident)" in said


@pytest.mark.slow
def test_compiled_units_of_a_sharded_model_beside_a_compiled_replica(measured):
    run, _ = measured(
        *[word for word in LOCAL if not word.startswith("measure.budget")],
        "model=mlp model.depth=2 model.width=256 compile=true parallel=ddp vary.parallel=[ddp,fsdp]",
        "measure.budget_s=90",
    )
    document = json.loads((run / "analysis.json").read_text())
    ddp, fsdp = (one["points"][-1] for one in document["strategies"])
    assert ddp["step_ms"]["value"] > 0
    assert fsdp["step_ms"]["value"] > 0
    kinds = {(row["kind"], row["phase"]) for row in fsdp["comm"]["collectives"]}
    assert kinds == {
        ("all_gather", "forward"),
        ("all_gather", "backward"),
        ("reduce_scatter", "backward"),
    }


@pytest.mark.slow
def test_power_sgd_over_a_compiled_model(measured, point_of):
    run, _ = measured(*LOCAL, "model=mlp model.depth=1 model.width=1024 compile=true ddp.comm_hook=powersgd")
    comm = point_of(run, 2)["comm"]
    assert comm["bytes_per_step"] < payload_of(run) / 20
    assert comm["busbw_gbit_s"]["value"] > 0
    assert len(comm["buckets"]) >= 3  # three messages a bucket
    assert all(bucket["bytes"] > 0 for bucket in comm["buckets"])
