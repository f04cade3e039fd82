"""How a run ends when something is wrong: what was measured stays, the cause is named, nothing is left behind."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.commands import start_scaling
from support.processes import wait_until

QUICK = ("model=synthetic", "model.param_mb=2", "model.compute_ms=20", "measure=quick", "tracking=disabled")
LOCAL = ("topology=local", "topology.ranks_per_host=2", "topology.device=cpu")


@pytest.mark.slow
def test_emulated_run_with_a_failing_worker(scaling, tmp_path, left_behind):
    begin = time.monotonic()
    done = scaling(
        "run",
        "topology=emulated_nvlink",
        *QUICK,
        "measure.budget_s=8",
        "inject.rank=1",
        "inject.fail_after_blocks=12",
        "run_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - begin < 240  # four starts of up to 40 s each on a busy machine, and the report
    assert "rank 1" in done.stdout
    assert "injected failure after 12 blocks" in " ".join(done.stdout.split())
    assert "inject.py:" in done.stdout
    document = json.loads((tmp_path / "run/analysis.json").read_text())
    assert document["points"][1]["step_ms"]["value"] > 0
    assert [t["status"] for t in document["trials"]] == ["done", "failed"]
    assert [t["launches"] for t in document["trials"]] == [[3], [0, 1, 2]]  # two more tries, then without it
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
@pytest.mark.alone
def test_emulated_run_interrupted(number, tmp_path, left_behind):
    process = start(tmp_path, "topology=emulated_nvlink", "measure.budget_s=100")
    progress = tmp_path / "run/launches/0/progress.json"
    wait_until(lambda: progress.exists() and json.loads(progress.read_text())["rounds"] >= 1.2, process)
    begin = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert time.monotonic() - begin < 30
    assert "`scaling run --resume run` goes on with what is left" in err
    assert "stopped" in out or "interrupted" in out
    assert json.loads((tmp_path / "run/analysis.json").read_text())["points"][1]["step_ms"]["value"] > 0
    assert left_behind(tmp_path) == []


def test_ctrl_c_before_anything_is_measured_says_how_to_go_on_too(tmp_path, left_behind):
    process = start(tmp_path, *LOCAL, "measure.budget_s=100")
    wait_until((tmp_path / "run/launches/0/launcher.txt").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "nothing was measured: interrupted by Ctrl-C" in err
    assert "`scaling run --resume run` goes on with what is left" in err
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_emulated_run_whose_driver_is_killed_leaves_no_process_and_goes_on_when_asked(
    scaling, tmp_path, left_behind
):
    process = start(tmp_path, "topology=emulated_nvlink", "measure.budget_s=8")
    wait_until((tmp_path / "run/launches/0/progress.json").exists, process)
    second = scaling("run", "--resume", "run", cwd=tmp_path)
    assert second.returncode == 2
    assert "another `scaling run` is working in it" in second.stderr
    process.kill()
    process.communicate()
    wait_until(lambda: not left_behind(tmp_path))
    done = scaling("run", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert [launch["state"] for launch in status["launches"]] == ["lost", "done"]
    assert [trial["launches"] for trial in status["trials"]] == [[1], [1]]
    measured = (tmp_path / "run/launches/1/rank-0.jsonl").stat()
    again = scaling("run", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run/launches/1/rank-0.jsonl").stat().st_mtime_ns == measured.st_mtime_ns
    assert not (tmp_path / "run/launches/2").exists()


@pytest.mark.slow
def test_local_run_whose_driver_is_killed_leaves_no_process(tmp_path, left_behind):
    process = start(tmp_path, *LOCAL, "measure.budget_s=100")
    wait_until((tmp_path / "run/launches/0/progress.json").exists, process)
    process.kill()
    process.communicate()
    wait_until(lambda: not left_behind(tmp_path))


@pytest.mark.slow
def test_a_worker_that_cannot_start_measures_nothing(scaling, tmp_path, left_behind):
    done = scaling("run", *LOCAL, *QUICK, "+env.GLOO_SOCKET_IFNAME=nosuch0", "run_dir=run", cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
    assert done.stderr.count("\n") <= 4  # one line of progress, one a restart, one of the cause
    assert left_behind(tmp_path) == []


def start(cwd: Path, *overrides: str) -> subprocess.Popen[str]:
    return start_scaling("run", *QUICK, *overrides, "run_dir=run", cwd=cwd)
