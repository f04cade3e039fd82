"""What log_run writes is read back from the files themselves, with W&B's own message classes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import scaling
from scaling.analysis.results import (
    CostComparison,
    Measured,
    PointComparison,
    SampleCost,
    SettingDifference,
    Split,
    TrialStatus,
)
from scaling.errors import ScalingError
from scaling.records.launch import Launches
from scaling.records.paths import RunFolder
from scaling.report.tracking import sync, wandb
from scaling.report.tracking import wandb as report
from scaling.settings.run import Vary

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def offline(tmp_path_factory, logged, wandb_files):
    """The runs of one folder, read back."""
    folder = RunFolder(tmp_path_factory.mktemp("offline"))
    folder.launch(0).path.mkdir(parents=True)
    folder.launch(0).env(0).write_text(json.dumps({"schema": 1, "torch": "2.13.0", "cpu": "Imaginary C1"}))
    folder.analysis.write_text("{}")
    (folder.path / ".lock").write_text("")
    tracked = logged.plan(
        project="team-scaling",
        entity="team",
        group="sweep",
        job_type="weekly",
        tags=("a", "b"),
        notes="on PCIe",
    )
    found = report.log_run(
        folder, tracked, logged.analysis(), logged.histories(), Launches(folder, tracked).environment
    )
    assert found is None
    return wandb_files.read_all(folder.path)


def test_one_run_a_world_size_and_a_summary_in_one_group(offline):
    assert set(offline) == {"n1", "n2", "summary"}
    for run in (r.run for r in offline.values()):
        assert (run.entity, run.project, run.run_group, run.job_type) == (
            "team",
            "team-scaling",
            "sweep",
            "weekly",
        )
        assert (list(run.tags), run.notes) == (["a", "b"], "on PCIe")


def test_history_is_in_order_and_leaves_out_what_is_unknown(offline, logged):
    two = offline["n2"]
    assert [row["step"] for row in two.history] == list(range(logged.STEPS))
    assert [row["step_ms"] for row in two.history] == [100.0 + i for i in range(logged.STEPS)]
    assert "forward_ms" not in two.history[0]
    assert (two.history[1]["forward_ms"], two.history[1]["arm"]) == (21.0, "probe")


def test_telemetry_stands_beside_the_steps(offline):
    history = offline["n2"].history
    assert "gpu/sm_mhz" not in history[0]
    assert history[1]["gpu/sm_mhz"] == 1400.0


def test_contended_steps_are_a_column_and_what_is_unknown_is_left_out(offline):
    history = offline["n2"].history
    assert "contended" not in history[0]
    assert [row["contended"] for row in history[1:4]] == [1, 0, 0]
    assert offline["n2"].metrics["contended"] == "step"


def test_charts_open_on_their_own_axis(offline):
    steps, sizes = offline["n2"].metrics, offline["summary"].metrics
    assert {steps[name] for name in ("step_ms", "forward_ms", "time_s", "gpu/sm_mhz")} == {"step"}
    assert sizes["efficiency"] == sizes["efficiency_low"] == sizes["step_ms"] == "world_size"


def test_summary_holds_the_points_numbers(offline):
    two = offline["n2"]
    expected = {"efficiency": 0.625, "efficiency_low": 0.61, "efficiency_high": 0.64, "step_ms": 80.0}
    expected |= {"samples_per_s": 800.0, "loss_link_bandwidth": 0.3, "parts_exposed_transfer_ms": 30.0}
    expected |= {"arms_plain_ms": 80.0, "status": "done"}
    assert expected.items() <= two.summary.items()
    assert "speedup" not in two.summary
    assert two.exit_code == 0


def test_config_names_the_overrides(offline, logged):
    config = offline["n2"].config
    expected = {
        "model": "mlp",
        "model.args.width": 64,
        "model.args.token_dim": 8,
        "topology": "emulated_pcie",
        "topology.link.rate_bit_s": 200_000_000,
        "precision": "fp32",
        "world_size": 2,
        "mode": "weak",
        "batch_per_rank": 32,
        "ddp.bucket_cap_mb": 25.0,
        "ddp.static_graph": False,
        "seed": 0,
        "accumulation_steps": 1,
        "versions.scaling": "0.1",
        "versions.torch": "2.13.0",
        "machine.cpu": "Imaginary C1",
        "git.commit": logged.COMMIT,
        "env.NCCL_P2P_DISABLE": "1",
        "run": logged.RUN_ID,
    }
    assert expected.items() <= config.items()
    assert offline["n2"].run.git.commit == logged.COMMIT
    assert "global_batch" not in config, "it is not read in weak scaling"
    assert "hidden" not in config.values(), "a secret in the environment stays here"


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({"task": "inference"}, None),
        ({"batches": (8, 64)}, None),
        ({"batch_max": True}, None),
        ({"vary": Vary(precision=("fp32", "bf16"))}, 32),
        ({"batches": (32,)}, 32),
    ],
)
def test_a_run_by_cases_has_a_batch_only_where_all_its_cases_do(logged, changes, batch):
    plan = logged.plan()
    by_cases = replace(plan, spec=replace(plan.spec, **changes))
    assert wandb.trial_config(by_cases, plan.trials[0]).get("batch_per_rank") == batch


def test_summary_run_holds_tables(offline, logged):
    run = offline["summary"]
    rows = run.rows("efficiency_by_world_size")
    assert [(r["efficiency"], r["efficiency_low"]) for r in rows] == [(1.0, None), (0.625, 0.61)]
    fall = [(row["cause"], row["share"], row["share_low"]) for row in run.rows("loss_waterfall")]
    assert fall[:2] == [("ideal", 1.0, None), ("link_bandwidth", 0.3, 0.28)]
    assert fall[-1] == ("measured", 0.625, 0.61)
    assert fall[0][1] - sum(share for _, share, _ in fall[1:-1]) == pytest.approx(fall[-1][1])
    assert len(run.rows("fabric_curve")) == 2
    assert run.rows("buckets")[0]["transfer_ms"] == 30.0
    verdict = run.rows("verdicts")[0]
    assert verdict["evidence"] == "30 ms exposed; 0.19 Gbit/s"
    assert (verdict["try"], verdict["predicted_gain"]) == ("ddp.comm_hook=fp16", 1.2)
    assert [row["status"] for row in run.rows("trials")] == ["done", "done"]


def test_summary_run_holds_charts_that_wandb_draws(offline):
    run = offline["summary"]
    assert run.table("efficiency_chart_table")["data"][-1] == [2, "efficiency_high", 0.64]
    bars = dict(run.table("waterfall_chart_table")["data"])
    assert (bars["ideal"], bars["link bandwidth"], bars["measured"]) == (100.0, 30.0, 62.5)
    for name in ("efficiency", "parts", "loss", "fabric", "waterfall"):
        assert f"_wandb.visualize.{name}_chart" in run.config
    assert run.summary["n2/efficiency"] == 0.625
    assert run.summary["warnings"] == ["2 cores only"]
    assert run.summary["answer"].startswith("At 2 ranks the run keeps 62.5 % ±1.5 of ideal")
    assert [row["efficiency"] for row in run.history if "efficiency" in row] == [1.0, 0.625]


def test_the_runs_files_are_an_artifact_with_type_and_metadata(offline, logged):
    (artifact,) = (a for a in offline["summary"].artifacts.values() if a.type == "scaling-run")
    assert set(artifact.files) == {"analysis.json", "launches/0/env-0.json"}
    assert all(path.is_file() for path in artifact.files.values())
    expected = {"run": logged.RUN_ID, "model": "mlp", "world_sizes": [1, 2], "commit": logged.COMMIT}
    assert expected.items() <= artifact.metadata.items()
    assert artifact.metadata["left_out"] == []


@pytest.mark.slow
def test_what_is_too_large_is_left_out_and_named(folder, logged, wandb_files, monkeypatch):
    folder.analysis.write_text("{}")
    folder.table("steps").mkdir()
    (folder.table("steps") / "part-000000.parquet").write_bytes(bytes(100))
    monkeypatch.setattr(report, "ARTIFACT_BYTES_MAX", 50)
    report.log_run(folder, logged.plan(), logged.analysis(), ())
    found = wandb_files.read_all(folder.path)["summary"].artifacts.values()
    (artifact,) = (a for a in found if a.type == "scaling-run")
    assert set(artifact.files) == {"analysis.json"}
    assert artifact.metadata["left_out"] == ["steps.parquet/part-000000.parquet"]


@pytest.mark.slow
def test_a_failed_world_size_is_a_failed_run(folder, logged, wandb_files):
    trials = (
        TrialStatus(world_size=1, status="done"),
        TrialStatus(world_size=2, status="oom", error="too large"),
    )
    found = replace(logged.analysis(), points=logged.analysis().points[:1], trials=trials)
    assert report.log_run(folder, logged.plan(), found, logged.histories()[:1]) is None
    run = wandb_files.read_all(folder.path)["n2"]
    assert (run.summary["status"], run.summary["error"], run.exit_code, run.history) == (
        "oom",
        "too large",
        1,
        [],
    )


@pytest.mark.slow
def test_a_resumed_run_adds_to_the_same_runs(folder, logged, wandb_files):
    report.log_run(folder, logged.plan(), logged.analysis(), logged.histories(3))
    before = {k: v.run.run_id for k, v in wandb_files.read_all(folder.path).items()}
    report.log_run(folder, logged.plan(), logged.analysis(), logged.histories(6))
    after = wandb_files.read_all(folder.path)
    assert {k: v.run.run_id for k, v in after.items()} == before
    assert before["n2"] == "20260102-030405-c0ffee-n2"
    assert after["n2"].run.run_group == logged.RUN_ID
    assert len(after["n2"].history) == 6
    assert not list(folder.path.glob(".wandb*"))


@pytest.mark.slow
def test_a_failure_is_a_line_and_keeps_what_was_there(folder, logged, wandb_files):
    report.log_run(folder, logged.plan(), logged.analysis(), logged.histories())
    warning = report.log_run(folder, logged.plan(project="no/such"), logged.analysis(), logged.histories())
    assert warning is not None
    assert warning.startswith("nothing was logged: ")
    assert "Invalid project name" in warning
    assert "\n" not in warning
    assert set(wandb_files.read_all(folder.path)) == {"n1", "n2", "summary"}
    with pytest.raises(ScalingError, match="not done within"):
        sync.write(folder, {"runs": []}, bound_s=0.02)
    assert set(wandb_files.read_all(folder.path)) == {"n1", "n2", "summary"}


def test_disabled_writes_and_imports_nothing(folder, logged):
    code = "import sys; from scaling.report.tracking.wandb import log_run; assert 'wandb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(scaling.__file__).parents[1])
    assert report.log_run(folder, logged.plan("disabled"), logged.analysis(), logged.histories()) is None
    assert list(folder.path.iterdir()) == []


@pytest.mark.slow
def test_offline_ignores_the_users_own_wandb(folder, logged, wandb_files, home, monkeypatch):
    mine = {"MODE": "online", "RUN_ID": "mine", "PROJECT": "mine", "RUN_GROUP": "mine", "RESUME": "must"}
    for name, value in mine.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert report.log_run(folder, logged.plan(), logged.analysis(), logged.histories()) is None
    runs = wandb_files.read_all(folder.path)
    assert set(runs) == {"n1", "n2", "summary"}
    assert runs["n1"].run.project == "scaling"
    assert [p for p in home.rglob("*") if p.is_file()] == []


@pytest.mark.slow
def test_a_comparison_is_a_run_of_its_own_with_a_row_a_pair_and_world_size(folder, logged, wandb_files):
    parts = Split(compute=Measured(1.0), fabric=Measured(1.25), left=Measured(0.96), alone=Measured(1.0))
    cost = CostComparison(base=SampleCost(usd_per_million_samples=Measured(3.0)), per_usd=Measured(1.5))
    causes = {"link_bandwidth": Measured(-4.0, -5.0, -3.0), "clocks": None}
    ratio = Measured(1.2, 1.1, 1.3, 9)
    one = PointComparison(
        world_size=2, ratio=ratio, distinguishable=True, causes=causes, split=parts, cost=cost
    )
    moved = SettingDifference(of="settings", key="ddp.bucket_cap_mb", base="25", other=None)
    base = logged.run_info()
    others = [replace(base, id=name, topology=name) for name in ("nvlink", "pcie5")]
    both = [replace(logged.slower(), other=o, points=(one,), settings=(moved,)) for o in others]
    assert (
        report.log_comparison(
            folder, logged.plan(group="sweep"), both, logged.plan(group="sweep").spec.tracking
        )
        is None
    )
    (run,) = wandb_files.read_all(folder.path).values()
    assert (run.run.run_group, run.run.run_id.rsplit("-", 1)[-1], run.exit_code) == ("sweep", "comparison", 0)
    rows = run.rows("comparison")
    assert [(r["base"], r["other"], r["world_size"]) for r in rows] == [
        ("emulated_pcie", "nvlink", 2),
        ("emulated_pcie", "pcie5", 2),
    ]
    assert (rows[0]["ratio"], rows[0]["ratio_low"], rows[0]["distinguishable"]) == (1.2, 1.1, True)
    assert (rows[0]["link_bandwidth_ms"], rows[0]["split_fabric"]) == (-4.0, 1.25)
    assert (rows[0]["base_usd_per_million_samples"], rows[0]["per_usd"]) == (3.0, 1.5)
    assert "clocks_ms" not in rows[0]
    assert run.table("settings")["data"][0][-3:] == ["ddp.bucket_cap_mb", "25", ""]
    assert "_wandb.visualize.ratio_chart" in run.config
    assert run.summary["answer"][0].startswith("At 2 ranks nvlink is faster than emulated_pcie")


@pytest.mark.slow
def test_comparisons_against_one_base_stand_beside_each_other_and_each_replaces_itself(
    folder, logged, wandb_files
):
    base = logged.run_info()
    nvlink, pcie5 = ([replace(logged.slower(), other=replace(base, id=name))] for name in ("nvlink", "pcie5"))
    for compared in (nvlink, pcie5, nvlink, [*nvlink, *pcie5], [*pcie5, *nvlink]):
        assert report.log_comparison(folder, logged.plan(), compared, logged.plan().spec.tracking) is None
    runs = [wandb_files.read(p) for p in folder.path.glob("wandb/offline-run-*/run-*.wandb")]
    assert sorted(run.config["others"] for run in runs) == [["nvlink"], ["pcie5"], ["pcie5", "nvlink"]]
    assert all(run.run.run_id.endswith("-comparison") for run in runs)
