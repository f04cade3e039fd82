"""What log_run writes is read back from the files themselves, with W&B's own message classes."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import scaling
from scaling.analysis.results import (
    Analysis,
    Arms,
    Comparison,
    Cost,
    CostComparison,
    CurvePoint,
    Fabric,
    Fits,
    Level,
    Loss,
    Measured,
    Parts,
    Point,
    PointComparison,
    Quality,
    Remedy,
    RunInfo,
    SettingDifference,
    Split,
    StepHistory,
    TrialOutcome,
    Verdict,
)
from scaling.errors import ScalingError
from scaling.plan import Plan, make_plan
from scaling.report import sync
from scaling.report import wandb as report
from scaling.spec import Link, Measure, Model, Spec, Topology, Tracking
from scaling.store import RunFolder

RUN_ID = "2026-01-02/03-04-05-c0ffee"
STEPS = 200
"""Enough for a file of more than one block."""


@dataclass
class Logged:
    """One offline run as its file tells."""

    folder: Path
    run: Any = None
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None

    def table(self, key: str) -> dict[str, Any]:
        """A table that was logged, as {columns, data}."""
        return json.loads((self.folder / "files" / self.summary[f"{key}.path"]).read_text())


def chunks(data: bytes):
    """Records of a LevelDB log: after 7 bytes of W&B's, blocks of 32 KiB of (crc, length, type, payload)."""
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last (2 and 3 are first and middle)
            yield record
            record = b""


def read(path: Path) -> Logged:
    from wandb.proto.wandb_internal_pb2 import Record

    logged = Logged(path.parent)
    for chunk in chunks(path.read_bytes()):
        record = Record.FromString(chunk)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            logged.run = record.run
            logged.config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        elif kind == "config":
            logged.config |= {
                ".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.config.update
            }
        elif kind == "history":
            logged.history.append(
                {".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            )
        elif kind == "summary":
            logged.summary |= {
                ".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update
            }
        elif kind == "metric":
            logged.metrics[record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            logged.exit_code = record.exit.exit_code
    return logged


def read_all(folder: RunFolder) -> dict[str, Logged]:
    """Every offline run of a folder by the end of its id; the link `latest-run` is no run."""
    runs = [read(p) for p in sorted(folder.path.glob("wandb/offline-run-*/run-*.wandb"))]
    found = {run.run.run_id.rsplit("-", 1)[-1]: run for run in runs}
    assert len(found) == len(runs)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path: Path) -> Path:
    """Nobody's key, and a home of its own: whatever lands there was not asked for."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> dict[str, Logged]:
    """The runs of one folder, read back."""
    folder = RunFolder(tmp_path_factory.mktemp("offline"))
    folder.launch(0).path.mkdir(parents=True)
    folder.launch(0).env(0).write_text(json.dumps({"schema": 1, "torch": "2.13.0"}))
    tracked = plan(project="team-scaling", group="sweep", job_type="weekly", tags=("a", "b"), notes="on PCIe")
    assert report.log_run(folder, tracked, analysis(), histories()) is None
    return read_all(folder)


def plan(mode: str = "offline", **tracking: Any) -> Plan:
    spec = Spec(
        model=Model(name="mlp", target="scaling.worker.models.mlp.build", args={"width": 64, "token_dim": 8}),
        topology=Topology(
            name="emulated_pcie",
            kind="emulated",
            hosts=2,
            ranks_per_host=1,
            device="cpu",
            backend="gloo",
            link=Link(rate_bit_s=200_000_000),
        ),
        world_sizes=(1, 2),
        mode="weak",
        batch_per_rank=32,
        global_batch=64,
        precision="fp32",
        measure=Measure(
            name="quick",
            rounds_min=3,
            rounds_max=9,
            steps=5,
            lead_in=1,
            warmup_max=9,
            target_half_width=None,
            budget_s=60,
            fabric_bytes_max=1 << 20,
            step_timeout_s=60,
        ),
        env={"NCCL_P2P_DISABLE": "1", "HF_TOKEN": "hidden"},
        tracking=Tracking(mode=mode, **tracking),
    )
    return make_plan(spec, run_id=RUN_ID, created="2026-01-02T03:04:05", version="0.1")


def run_info() -> RunInfo:
    return RunInfo(
        id=RUN_ID,
        model="mlp",
        topology="emulated_pcie",
        precision="fp32",
        mode="weak",
        task="train",
        backend="gloo",
        device="cpu",
        started="2026-01-02T03:04:05",
        duration_s=12.5,
        synthetic=False,
        launches=1,
    )


def analysis() -> Analysis:
    alone = Point(
        world_size=1,
        hosts=1,
        status="done",
        step_ms=Measured(50.0, 49.0, 51.0, 9),
        efficiency=Measured(1.0),
        parts_ms=Parts(forward=Measured(20.0)),
    )
    both = Point(
        world_size=2,
        hosts=2,
        status="done",
        step_ms=Measured(80.0, 79.0, 81.0, 9),
        samples_per_s=Measured(800.0),
        efficiency=Measured(0.625, 0.61, 0.64, 9),
        arms_ms=Arms(plain=Measured(80.0)),
        parts_ms=Parts(forward=Measured(20.0), exposed_transfer=Measured(30.0, 29.0, 31.0, 9)),
        loss=Loss(link_bandwidth=Measured(0.3, 0.28, 0.32, 9), unexplained=Measured(0.075)),
    )
    curve = tuple(
        CurvePoint(
            collective="all_reduce",
            bytes=b,
            time_us=Measured(9.0),
            algbw_gbit_s=Measured(0.1),
            busbw_gbit_s=w,
        )
        for b, w in ((1024, Measured(0.05)), (1 << 20, Measured(0.19)))
    )
    level = Level(
        name="all", world_size=2, alpha_us=None, busbw_gbit_s=None, nominal_gbit_s=0.19, curve=curve
    )
    verdict = Verdict(
        cause="link_bandwidth",
        world_size=2,
        share=Measured(0.3, 0.28, 0.32, 9),
        confidence="high",
        evidence=("30 ms exposed", "0.19 Gbit/s"),
        try_=(Remedy(overrides="ddp.comm_hook=fp16", code="", predicted_gain=Measured(1.2)),),
    )
    return Analysis(
        schema=1,
        run=run_info(),
        points=(alone, both),
        fabric=Fabric(levels=(level,)),
        fits=Fits(),
        inference=(),
        verdicts=(verdict,),
        quality=Quality(
            contended_blocks=1, dropped_samples=0, clock_bound_us=None, warnings=("2 cores only",)
        ),
        trials=(TrialOutcome(world_size=1, status="done"), TrialOutcome(world_size=2, status="done")),
    )


def histories(steps: int = STEPS) -> tuple[StepHistory, ...]:
    def of(world_size: int) -> StepHistory:
        probe = [i % 2 == 1 for i in range(steps)]
        columns = {
            "time_s": tuple(0.05 * i for i in range(steps)),
            "step_ms": tuple(50.0 * world_size + i for i in range(steps)),
            "forward_ms": tuple(20.0 + i if p else None for i, p in enumerate(probe)),
        }
        arms = tuple("probe" if p else "plain" for p in probe)
        return StepHistory(world_size=world_size, columns=columns, arm=arms)

    return of(1), of(2)


def test_one_run_a_world_size_and_a_summary_in_one_group(offline):
    assert set(offline) == {"n1", "n2", "summary"}
    for run in (r.run for r in offline.values()):
        assert (run.project, run.run_group, run.job_type) == ("team-scaling", "sweep", "weekly")
        assert (list(run.tags), run.notes) == (["a", "b"], "on PCIe")


def test_history_is_in_order_and_leaves_out_what_is_unknown(offline):
    two = offline["n2"]
    assert [row["step"] for row in two.history] == list(range(STEPS))
    assert [row["step_ms"] for row in two.history] == [100.0 + i for i in range(STEPS)]
    assert "forward_ms" not in two.history[0]
    assert (two.history[1]["forward_ms"], two.history[1]["arm"]) == (21.0, "probe")
    assert two.metrics["step_ms"] == two.metrics["forward_ms"] == two.metrics["time_s"] == "step"


def test_summary_holds_the_points_numbers(offline):
    two = offline["n2"]
    expected = {"efficiency": 0.625, "efficiency_low": 0.61, "efficiency_high": 0.64, "step_ms": 80.0}
    expected |= {"samples_per_s": 800.0, "loss_link_bandwidth": 0.3, "parts_exposed_transfer_ms": 30.0}
    expected |= {"arms_plain_ms": 80.0, "status": "done"}
    assert expected.items() <= two.summary.items()
    assert "speedup" not in two.summary
    assert two.exit_code == 0


def test_config_names_the_overrides(offline):
    config = offline["n2"].config
    expected = {
        "model": "mlp",
        "model.args.width": 64,
        "model.args.token_dim": 8,
        "topology": "emulated_pcie",
    }
    expected |= {
        "topology.link.rate_bit_s": 200_000_000,
        "precision": "fp32",
        "world_size": 2,
        "mode": "weak",
    }
    expected |= {"batch_per_rank": 32, "ddp.bucket_cap_mb": 25.0, "ddp.static_graph": False, "seed": 0}
    expected |= {"accumulation_steps": 1, "versions.scaling": "0.1", "versions.torch": "2.13.0"}
    expected |= {"env.NCCL_P2P_DISABLE": "1", "run": RUN_ID}
    assert expected.items() <= config.items()
    assert "global_batch" not in config, "it is not read in weak scaling"
    assert "hidden" not in config.values(), "a secret in the environment stays here"


def test_summary_run_holds_tables_and_charts(offline):
    run = offline["summary"]
    table = run.table("efficiency_by_world_size")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(r["efficiency"], r["efficiency_low"]) for r in rows] == [(1.0, None), (0.625, 0.61)]
    assert run.table("loss_waterfall")["data"][0] == [2, "link_bandwidth", 0.3, 0.28, 0.32]
    assert len(run.table("fabric_curve")["data"]) == 2
    verdicts = run.table("verdicts")
    verdict = dict(zip(verdicts["columns"], verdicts["data"][0], strict=True))
    assert verdict["evidence"] == "30 ms exposed; 0.19 Gbit/s"
    assert (verdict["try"], verdict["predicted_gain"]) == ("ddp.comm_hook=fp16", 1.2)
    assert run.table("efficiency_chart_table")["data"][-1] == [2, "efficiency_high", 0.64]
    assert "_wandb.visualize.fabric_chart" in run.config
    assert run.summary["n2/efficiency"] == 0.625
    assert run.summary["warnings"] == ["2 cores only"]
    assert [row["efficiency"] for row in run.history if "efficiency" in row] == [1.0, 0.625]
    assert run.metrics["efficiency"] == "world_size"


def test_a_comparison_is_a_run_of_its_own_with_a_row_a_pair_and_world_size(folder):
    ratio = Measured(1.2, 1.1, 1.3, 9)
    parts = Split(compute=Measured(1.0), fabric=Measured(1.25), left=Measured(0.96), alone=Measured(1.0))
    cost = CostComparison(base=Cost(usd_per_million_samples=Measured(3.0)), per_usd=Measured(1.5))
    causes = {"link_bandwidth": Measured(-4.0, -5.0, -3.0), "clocks": None}
    one = PointComparison(
        world_size=2, ratio=ratio, distinguishable=True, causes=causes, split=parts, cost=cost
    )
    moved = SettingDifference(of="settings", key="ddp.bucket_cap_mb", base="25", other=None)
    base = run_info()
    others = [replace(base, id=name, topology=name) for name in ("nvlink", "pcie5")]
    both = [
        Comparison(
            schema=1, base=base, other=o, comparable=True, reasons=(), points=(one,), settings=(moved,)
        )
        for o in others
    ]
    assert report.log_comparison(folder, plan(group="sweep"), both) is None
    (run,) = read_all(folder).values()
    assert (run.run.run_group, run.run.run_id.rsplit("-", 1)[-1], run.exit_code) == ("sweep", "comparison", 0)
    table = run.table("comparison")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(r["base"], r["other"], r["world_size"]) for r in rows] == [
        ("emulated_pcie", "nvlink", 2),
        ("emulated_pcie", "pcie5", 2),
    ]
    assert (rows[0]["ratio"], rows[0]["ratio_low"], rows[0]["distinguishable"]) == (1.2, 1.1, True)
    assert (rows[0]["link_bandwidth_ms"], rows[0]["split_fabric"]) == (-4.0, 1.25)
    assert (rows[0]["base_usd_per_million_samples"], rows[0]["per_usd"]) == (3.0, 1.5)
    assert "clocks_ms" not in rows[0]
    settings = run.table("settings")
    assert settings["data"][0][-3:] == ["ddp.bucket_cap_mb", "25", ""]
    assert "_wandb.visualize.ratio_chart" in run.config
    assert run.summary["answer"][0].startswith("At 2 ranks nvlink is faster than emulated_pcie")


def test_a_failed_world_size_is_a_failed_run(folder):
    trials = (
        TrialOutcome(world_size=1, status="done"),
        TrialOutcome(world_size=2, status="oom", error="too large"),
    )
    found = replace(analysis(), points=analysis().points[:1], trials=trials)
    assert report.log_run(folder, plan(), found, histories()[:1]) is None
    run = read_all(folder)["n2"]
    assert (run.summary["status"], run.summary["error"], run.exit_code, run.history) == (
        "oom",
        "too large",
        1,
        [],
    )


def test_logging_again_replaces_the_same_runs(folder):
    report.log_run(folder, plan(), analysis(), histories(3))
    before = {k: v.run.run_id for k, v in read_all(folder).items()}
    report.log_run(folder, plan(), analysis(), histories(6))
    after = read_all(folder)
    assert {k: v.run.run_id for k, v in after.items()} == before
    assert before["n2"] == "2026-01-02-03-04-05-c0ffee-n2"
    assert after["n2"].run.run_group == RUN_ID
    assert len(after["n2"].history) == 6
    assert not list(folder.path.glob(".wandb*"))


def test_a_failure_is_a_line_and_keeps_what_was_there(folder):
    report.log_run(folder, plan(), analysis(), histories())
    warning = report.log_run(folder, plan(project="no/such"), analysis(), histories())
    assert warning is not None
    assert warning.startswith("nothing was logged: ")
    assert "Invalid project name" in warning
    assert "\n" not in warning
    assert set(read_all(folder)) == {"n1", "n2", "summary"}
    with pytest.raises(ScalingError, match="not done within"):
        sync.write(folder, {"runs": []}, bound_s=0.02)
    assert set(read_all(folder)) == {"n1", "n2", "summary"}


def test_disabled_writes_and_imports_nothing(folder):
    code = "import sys; from scaling.report.wandb import log_run; assert 'wandb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(scaling.__file__).parents[1])
    assert report.log_run(folder, plan("disabled"), analysis(), histories()) is None
    assert list(folder.path.iterdir()) == []


def test_offline_ignores_the_users_own_wandb(folder, home, monkeypatch):
    mine = {"MODE": "online", "RUN_ID": "mine", "PROJECT": "mine", "RUN_GROUP": "mine", "RESUME": "must"}
    for name, value in mine.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert report.log_run(folder, plan(), analysis(), histories()) is None
    runs = read_all(folder)
    assert set(runs) == {"n1", "n2", "summary"}
    assert runs["n1"].run.project == "scaling"
    assert [p for p in home.rglob("*") if p.is_file()] == []


def test_online_without_a_key_logs_offline(folder):
    warning = report.log_run(folder, plan("online"), analysis(), histories())
    assert warning is not None
    assert "No API key" in warning
    assert "scaling sync" in warning
    assert "\n" not in warning
    assert set(read_all(folder)) == {"n1", "n2", "summary"}


def test_an_unreachable_server_is_a_warning(folder, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(report, "ONLINE_BOUND_S", 2.0)
    begin = time.monotonic()
    warning = report.log_run(folder, plan("online"), analysis(), histories())
    assert time.monotonic() - begin < 15
    assert warning is not None
    assert "3 of 3 W&B runs not uploaded" in warning
    assert set(read_all(folder)) == {"n1", "n2", "summary"}


class Server(BaseHTTPRequestHandler):
    """As much of a W&B server as an upload asks for."""

    taken: dict[str, list[str]]
    """History lines by run id."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/graphql":
            self.reply({"data": self.answer(body["query"], body.get("variables") or {})})
            return
        lines = body.get("files", {}).get("wandb-history.jsonl")
        if lines:
            self.taken.setdefault(self.path.split("/")[-2], [])[lines["offset"] :] = lines["content"]
        self.reply({})

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({})

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "UpsertBucket" in query:
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "r", "name": given["name"], "displayName": given["name"], "project": project}
            return {
                "upsertBucket": {"bucket": bucket | {"config": "{}", "historyLineCount": 0}, "inserted": True}
            }
        if "CreateRunFiles" in query:
            files = [{"name": f, "uploadUrl": f"http://{self.headers['Host']}/{f}"} for f in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "CreateArtifact" in query:
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "a"}}}
            return {"createArtifact": {"artifact": artifact}}
        return {}

    def reply(self, value: dict[str, Any]):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(monkeypatch):
    """A W&B server on this machine, and the key to it; what it was given."""
    Server.taken = {}
    http = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{http.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    yield Server.taken
    http.shutdown()
    http.server_close()


def test_online_uploads_and_replaces_every_run(folder, server):
    stem = "2026-01-02-03-04-05-c0ffee"
    for steps in (STEPS, 6):
        assert report.log_run(folder, plan("online"), analysis(), histories(steps)) is None
        taken = {run: len(lines) for run, lines in server.items()}
        assert taken == {f"{stem}-n1": steps, f"{stem}-n2": steps, f"{stem}-summary": 3}


def test_sync_uploads_what_was_logged_offline_once(folder, server):
    report.log_run(folder, plan(), analysis(), histories())
    assert server == {}
    said = sync.sync(folder, bound_s=60)
    assert said.startswith("3 W&B runs uploaded, see http://")
    assert said.endswith("c0ffee-summary")
    assert len(server) == 3
    assert sync.sync(folder) == "3 W&B runs uploaded before, nothing to do"


def test_sync_says_why_there_is_nothing_to_do(folder):
    with pytest.raises(ScalingError, match="no W&B runs to upload"):
        sync.sync(folder)
    run = folder.path / "wandb" / "offline-run-20260102_030405-x-n1"
    run.mkdir(parents=True)
    (run / "run-x-n1.wandb.synced").touch()
    assert sync.sync(folder) == "1 W&B run uploaded before, nothing to do"
