"""Sharded launches on real ranks: strategies side by side, remedies tried, and ends that leave nothing behind."""

import json
import signal

import pytest
from support.commands import start_scaling
from support.processes import wait_until

pytestmark = [pytest.mark.slow]

QUICK = (
    "topology=local",
    "topology.device=cpu",
    "model=synthetic",
    "model.param_mb=4",
    "model.layers=4",
    "model.compute_ms=20",
    "measure=quick",
    "tracking=disabled",
)
MIB = 2**20


@pytest.fixture(scope="module")
def side_by_side(scaling, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("side")
    done = scaling(
        "run",
        *QUICK,
        "topology.ranks_per_host=4",
        "parallel=hsdp",
        "parallel.shard=2",
        "vary.parallel=[ddp,fsdp,hsdp]",
        "world_sizes=[4]",
        "measure.budget_s=60",
        "run_dir=run",
        "--verbose",
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads((cwd / "run/analysis.json").read_text()), done, cwd / "run"


def test_strategies_are_measured_in_one_launch(side_by_side):
    document, done, run = side_by_side
    assert [launch.name for launch in (run / "launches").iterdir()] == ["0"]
    named = [one["parallel"]["strategy"] for one in document["strategies"]]
    assert named == ["ddp", "fsdp", "hsdp"]
    assert document["strategies"][0]["points"] == document["points"]
    assert all(one["points"][-1]["step_ms"]["value"] > 0 for one in document["strategies"])
    assert all(one["against_first"][-1]["throughput"]["value"] > 0 for one in document["strategies"][1:])
    assert "STRATEGIES SIDE BY SIDE" in done.stdout.upper()


def test_each_strategy_sends_its_own_collectives(side_by_side):
    sent = {}
    for one in side_by_side[0]["strategies"]:
        comm = one["points"][-1]["comm"]
        sent[one["parallel"]["strategy"]] = {c["kind"] for c in comm["collectives"]} if comm else set()
    assert sent["fsdp"] == {"all_gather", "reduce_scatter"}
    assert sent["hsdp"] == {"all_gather", "reduce_scatter", "all_reduce"}


def test_a_rank_holds_what_the_mesh_says(side_by_side):
    shares = {"ddp": 1, "fsdp": 4, "hsdp": 2}
    for one in side_by_side[0]["strategies"]:
        memory, share = one["memory"], shares[one["parallel"]["strategy"]]
        assert memory["parameters_bytes"] == memory["computed_parameters_bytes"] == 4 * MIB // share
        assert memory["gradients_bytes"] == memory["computed_gradients_bytes"] == 4 * MIB // share


def test_remedies_are_tried_beside_fsdp_and_each_launch_ends(scaling, tmp_path, left_behind):
    """What a verdict would propose is written into the analysis, since a busy machine may show no cause."""
    done = scaling(
        "run",
        *QUICK,
        "topology.ranks_per_host=2",
        "parallel=fsdp",
        "world_sizes=[2]",
        "measure.budget_s=10",
        "run_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run/analysis.json"
    tries = [
        {"overrides": asked, "code": "", "predicted_gain": None}
        for asked in ("fsdp.reshard_after_forward=false", "parallel=ddp")
    ]
    verdict = {"world_size": 2, "cause": "link_bandwidth", "share": None, "confidence": "low", "evidence": []}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verdicts": [verdict | {"try": tries}]}))
    for number in (1, 2):
        tried = scaling("verify", "run", "--try", str(number), cwd=tmp_path)
        assert tried.returncode in (0, 1), tried.stderr
        found = json.loads((tmp_path / f"run/verify/{number - 1}/verification.json").read_text())
        assert found["verdict"] in ("held", "not_held", "not_distinguishable")
        assert found["measured_gain"]["value"] > 0
        assert left_behind(tmp_path) == []


def started(tmp_path, strategy):
    process = start_scaling(
        "run",
        *QUICK,
        "topology.ranks_per_host=4",
        f"parallel={strategy}",
        *(["parallel.shard=2"] if strategy == "hsdp" else []),
        "world_sizes=[4]",
        "measure.budget_s=100",
        "run_dir=run",
        cwd=tmp_path,
    )
    progress = tmp_path / "run/launches/0/progress.json"
    wait_until(lambda: progress.exists() and json.loads(progress.read_text())["rounds"] >= 1.2, process)
    return process


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_ctrl_c_ends_a_sharded_launch(tmp_path, left_behind, strategy):
    process = started(tmp_path, strategy)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 3, err
    assert "stopped" in out or "interrupted" in out
    assert left_behind(tmp_path) == []
