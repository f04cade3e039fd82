"""Plain Gloo ranks on this machine: precision, strong scaling, accumulation, one's own model, a multirun."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LOCAL = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "world_sizes=[1,2]",
    "measure=quick",
    "measure.budget_s=40",
    "measure.rounds_max=3",
    "tracking=disabled",
)


@pytest.mark.parametrize("key", ["static_graph", "find_unused_parameters"])
def test_ddp_that_counts_from_backward_to_backward(measured, point_of, key):
    run, _ = measured(*LOCAL, "model=mlp", f"ddp.{key}=true")
    point = point_of(run, 2)
    assert point["comm"]["bytes_per_step"] > 2**20
    assert point["arms_ms"]["ddp_solo"] is not None


def test_strong_scaling_in_bf16_with_accumulation(measured, point_of):
    run, _ = measured(
        *LOCAL, "model=mlp model.width=256 mode=strong global_batch=64 precision=bf16 accumulation_steps=2"
    )
    point = point_of(run, 2)
    assert point["loss"]["small_batch"] is not None
    assert point["samples_per_s"]["value"] == pytest.approx(64e3 / point["step_ms"]["value"])
    # Gradients are reduced once a step, not once a micro-step.
    assert (
        point["comm"]["bytes_per_step"]
        == json.loads((run / "launches/0/env-0.json").read_text())["parameter_bytes"]
    )


def test_wrong_no_sync_moves_the_gradients_in_every_micro_step(measured, point_of):
    run, _ = measured(*LOCAL, "model=mlp model.width=256 accumulation_steps=2 inject.wrong_no_sync=true")
    payload = json.loads((run / "launches/0/env-0.json").read_text())["parameter_bytes"]
    assert point_of(run, 2)["comm"]["bytes_per_step"] == 2 * payload


def test_ones_own_model(measured, tmp_path, point_of, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from scaling import Workload\n"
        "def factory(width):\n"
        "    return Workload(\n"
        "        module=torch.nn.Linear(width, 1),\n"
        "        make_batch=lambda n, g: (torch.randn(n, width, generator=g), torch.zeros(n, 1)),\n"
        "        loss=torch.nn.functional.mse_loss,\n"
        "        optimizer=lambda p: torch.optim.Adam(p, lr=1e-4),\n"
        "    )\n"
    )
    run, _ = measured(*LOCAL, "model=custom model._target_=mine.factory +model.args.width=64")
    assert point_of(run, 2)["comm"]["bytes_per_step"] == 65 * 4
    left = [path for path in (tmp_path / "temporary").rglob("*") if path.is_file() or "elastic" in path.name]
    assert left == []
    assert not (run / "launches/0/torchrun").exists()


@pytest.mark.measures
def test_a_contended_machine_is_said_and_nothing_is_claimed_with_confidence(scaling, tmp_path, analysis_of):
    """Two programs keep both cores busy; the model is all compute, so no cause there is would be true."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        done = scaling("run", *LOCAL, "model=highmem_cnn", "batch_per_rank=16", "run_dir=run", cwd=tmp_path)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr
    document = analysis_of(tmp_path / "run")
    assert document["quality"]["contended_blocks"] > 0
    assert any("contended" in warning for warning in document["quality"]["warnings"])
    assert "contended" in done.stdout
    assert "contended: others took the cores" in (tmp_path / "run" / "report.html").read_text()
    assert {verdict["confidence"] for verdict in document["verdicts"]} == {"low"}
    efficiency = document["points"][1]["efficiency"]
    known = efficiency["low"] is not None  # else too few rounds fitted in for any interval
    assert not known or efficiency["high"] - efficiency["low"] > 0.05


def test_a_multirun_ends_in_a_comparison(scaling, tmp_path):
    done = scaling("run", "-m", *LOCAL, "model=mlp", "model.width=64,65", "run_dir=both", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    comparison = json.loads((tmp_path / "both/comparison.json").read_text())
    assert (tmp_path / "both/0/analysis.json").exists()
    assert (tmp_path / "both/1/analysis.json").exists()
    assert (tmp_path / "both/comparison.html").exists()
    assert comparison["comparisons"] == []  # two widths are two models
    rows = [(row["settings"]["model.width"], row["world_size"]) for row in comparison["sweep"]["rows"]]
    assert rows == [("64", 1), ("64", 2), ("65", 1), ("65", 2)]
    assert "NOT COMPARABLE" not in done.stdout
    assert "#model.width  ranks" in done.stdout
    gate = scaling("compare", "both/0", "both/1", "--fail-below", "0.5", cwd=tmp_path)
    assert gate.returncode == 2
    assert "not comparable" in gate.stderr
    bar = ("--fail-below", "0.5", "--undecided", "ok")  # a busy machine may leave it undecided
    same = scaling("compare", "both/0", "both/0", *bar, "--json", cwd=tmp_path)
    assert same.returncode == 0
    assert json.loads(same.stdout)["points"][0]["distinguishable"] is False


def test_several_launches_and_every_collective(measured, analysis_of):
    run, _ = measured(
        *LOCAL,
        "model=mlp model.width=64 repeats=2 measure.budget_s=30",
        "measure.collectives=[all_reduce,all_gather,reduce_scatter,broadcast]",
        "measure.fabric_max=64KiB",
    )
    document = analysis_of(run)
    assert document["run"]["launches"] == 2
    assert (run / "launches/1/rank-1.jsonl").exists()
    assert document["points"][1]["efficiency"]["n"] >= 4  # rounds of both launches
    assert {p["collective"] for p in document["fabric"]["levels"][0]["curve"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
    }


def test_a_small_bound_leaves_details_to_some_rounds(measured, point_of, analysis_of):
    run, _ = measured(
        *LOCAL,
        "model=synthetic model.param_mb=8 model.layers=16 model.compute_ms=10 ddp.bucket_cap_mb=1",
        "measure.rounds_max=12 measure.records_max=50KiB inject.rank=1 inject.compute_ms=20",
    )
    heads = [
        json.loads((run / f"launches/0/rank-{rank}.jsonl").read_text().split("\n", 1)[0]) for rank in (0, 1)
    ]
    detailed = heads[0]["detailed"]
    assert heads[1]["detailed"] == detailed  # the same on every rank
    assert (len(detailed), detailed[:3]) == (6, [0, 1, 2])  # the fewest
    document, point = analysis_of(run), point_of(run, 2)
    rounds = point["step_ms"]["n"]
    assert point["arms_ms"]["ddp_solo"]["n"] == sum(number < rounds for number in detailed) < rounds
    assert point["efficiency"]["n"] == rounds
    assert point["straggler"]["rank"] == 1
    assert document["quality"]["dropped_blocks"] == 0
    assert [line for line in document["quality"]["warnings"] if line.startswith("details in")]
