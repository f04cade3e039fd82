"""The examples, run as they are: torchrun, then `scaling analyze` of the folder that they name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.processes import captured

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def launched():
    """Run an example on two ranks; returns its standard output."""

    def run(name: str, *arguments: str, cwd: Path) -> str:
        launch = [sys.executable, "-m", "torch.distributed.run", f"--log-dir={cwd}/torchrun"]
        launch += ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        launch += ["--local-addr=127.0.0.1", str(ROOT / "examples" / name)]
        own = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = captured([*launch, *arguments], cwd=cwd, timeout=180, env=environment(own))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.measures
def test_plain_pytorch_and_a_late_rank_in_sixty_steps(launched, scaling, tmp_path, point_of):
    said = launched("plain_pytorch.py", "--steps", "60", "--late-ms", "30", cwd=tmp_path)
    run = Path(said.split()[-1])
    assert run.parts[-3] == "runs"  # runs/<date>/<time>-<hash> below the working directory
    assert run.is_relative_to(tmp_path)
    done = scaling("analyze", str(run), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "faster if communication were free" in " ".join(done.stdout.split())
    point = point_of(run, 2)
    assert (point["straggler"]["rank"], point["straggler"]["phase"]) == (1, "input")
    assert point["straggler"]["cost_ms"]["value"] == pytest.approx(30, rel=0.4)  # it sleeps so long
    assert point["efficiency"] is None
    assert (run / "report.html").exists()


@pytest.mark.measures
def test_uneven_lengths_and_what_bucketing_them_does(launched, scaling, tmp_path, point_of, analysis_of):
    runs = [tmp_path / "mixed", tmp_path / "bucketed"]
    for run, more in zip(runs, ([], ["--bucket"]), strict=True):
        launched("uneven_lengths.py", "--run-dir", str(run), *more, cwd=tmp_path)
        assert scaling("analyze", str(run), cwd=tmp_path).returncode == 0
    mixed, bucketed = (point_of(run, 2)["tokens"] for run in runs)
    assert mixed["most_over_mean"]["value"] > 1.15
    assert mixed["per_token_us"]["low"] > 0
    assert mixed["saves_ms"]["low"] > 0
    assert bucketed["most_over_mean"]["value"] < 1.05
    causes = [[verdict["cause"] for verdict in analysis_of(run)["verdicts"]] for run in runs]
    assert ["imbalance" in found for found in causes] == [True, False]


@pytest.mark.slow
def test_accelerate_with_accumulation(launched, scaling, tmp_path, point_of):
    pytest.importorskip("accelerate")
    said = launched("with_accelerate.py", "--cpu", "--batches", "120", "--run-dir", "run", cwd=tmp_path)
    done = scaling("analyze", said.split()[-1], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    point = point_of(tmp_path / "run", 2)
    assert point["samples_per_s"]["value"] == pytest.approx(2 * 64e3 / point["step_ms"]["value"])
