"""Training options in a real run: every arm has them, and the bytes are those that were sent."""

import json

import polars as pl
import pytest

pytestmark = pytest.mark.slow

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


def local_but(*replaced):
    """LOCAL without the settings that a test has values of its own for."""
    return [word for word in LOCAL if not word.startswith(replaced)]


def payload_of(run):
    return json.loads((run / "launches/0/env-0.json").read_text())["parameter_bytes"]


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


def test_compiled_units_of_a_sharded_model_beside_a_compiled_replica(measured):
    run, _ = measured(
        *local_but("measure.budget_s"),
        "model=mlp model.depth=2 model.width=256 compile=true parallel=ddp vary.parallel=[ddp,fsdp]",
        "measure.budget_s=90",
    )
    document = json.loads((run / "analysis.json").read_text())
    ddp, fsdp = (one["points"][-1] for one in document["strategies"])
    assert ddp["step_ms"]["value"] > 0
    assert fsdp["step_ms"]["value"] > 0
    kinds = {(row["kind"], row["phase"]) for row in fsdp["comm"]["collectives"]}
    assert kinds == {("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")}


def test_compiled_units_of_copies_send_what_eager_ones_do_and_stamp_all_of_it(measured):
    """torch.compile may move a call out of the tap's sight, so each rank's every step has to show each collective."""
    run, _ = measured(
        *local_but("measure.budget_s", "topology.ranks_per_host", "world_sizes"),
        "model=mlp model.depth=2 model.width=256 compile=true parallel=hsdp parallel.shard=2",
        "topology.ranks_per_host=4 world_sizes=[4] measure.budget_s=120",
    )
    document = json.loads((run / "analysis.json").read_text())
    (point,) = document["points"]
    sent = {(row["kind"], row["phase"], row["communicator"]): row for row in point["comm"]["collectives"]}
    assert set(sent) == {
        ("all_gather", "forward", "shard"),
        ("all_gather", "backward", "shard"),
        ("reduce_scatter", "backward", "shard"),
        ("all_reduce", "backward", "replicate"),
    }
    size = payload_of(run)
    assert sent["all_gather", "forward", "shard"]["bytes"] == size
    assert sent["reduce_scatter", "backward", "shard"]["bytes"] == size
    assert sent["all_reduce", "backward", "replicate"]["bytes"] == size // 2
    assert all(row["transfer_ms"]["value"] > 0 for row in sent.values())
    assert document["quality"]["dropped_blocks"] == document["quality"]["dropped_samples"] == 0
    assert point["closure"] is not None

    step = ["launch", "rank", "block", "step"]
    detailed = (pl.col("arm") == "probe") & pl.col("detailed")
    rows = pl.read_parquet(run / "buckets.parquet").filter(detailed)
    assert rows.group_by(step).len()["len"].n_unique() == 1
    assert rows.group_by("seq").agg(pl.col("kind", "bytes", "unit", "phase").n_unique()).select(
        pl.all().exclude("seq").max()
    ).row(0) == (1, 1, 1, 1)
    steps = pl.read_parquet(run / "steps.parquet").filter(detailed)
    assert rows.select(step).n_unique() == len(steps)
    within = rows.join(steps, on=step, suffix="_of_step")
    assert len(within) == len(rows)
    assert within.select(
        pl.all_horizontal(
            pl.col("begin_ns") <= pl.col("launch_ns"),
            pl.col("launch_ns") <= pl.col("done_ns"),
            pl.col("done_ns") <= pl.col("end_ns"),
        ).all()
    ).item()


def test_power_sgd_over_a_compiled_model(measured, point_of):
    run, _ = measured(*LOCAL, "model=mlp model.depth=1 model.width=1024 compile=true ddp.comm_hook=powersgd")
    comm = point_of(run, 2)["comm"]
    assert comm["bytes_per_step"] < payload_of(run) / 20
    assert comm["busbw_gbit_s"]["value"] > 0
    assert len(comm["buckets"]) >= 3  # three messages a bucket
    assert all(bucket["bytes"] > 0 for bucket in comm["buckets"])
