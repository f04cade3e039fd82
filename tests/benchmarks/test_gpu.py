"""The GPU benchmark where there is none: it skips with the reason, and its own code runs on a CPU."""

import json
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.processes import captured

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.py"


def run(*arguments):
    env = environment({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    return captured([sys.executable, str(SCRIPT), *arguments], env=env, timeout=500)


def test_without_a_gpu_it_skips_and_says_why():
    done = run()
    assert (done.returncode, done.stdout) == (77, "no CUDA device here\n"), done.stderr


def sections(path):
    document = json.loads(path.read_text())
    assert document["judged"] is False
    assert {row["met"] for row in document["rows"]} == {None}
    found = {}
    for row in document["rows"]:
        found.setdefault(row["section"], []).append(row)
    return found


def no_failure(done):
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed " not in done.stdout, done.stdout + done.stderr
    assert "says nothing of a GPU" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "benchmark": "gpu",
        "device": "cpu",
        "judged": False,
        "ok": True,
    }


@pytest.mark.launch
@pytest.mark.slow
def test_a_dry_run_on_a_cpu_goes_the_same_ways_and_judges_nothing(tmp_path):
    only = ("ranks", "phases", "probe", "anchors", "telemetry")
    asked = [word for name in only for word in ("--only", name)]
    done = run("--device", "cpu", "--rounds", "3", "--out", str(tmp_path / "out.json"), *asked)
    no_failure(done)
    found = sections(tmp_path / "out.json")
    assert set(found) == set(only)
    assert [row["what"] for row in found["phases"]] == ["input", "forward", "backward", "optimizer", "step"]
    assert found["ranks"][0]["measured"] == "finite, as without the tap"
    (whole,) = [row for row in found["phases"] if row["what"] == "step"]
    assert whole["value"] < 0.02  # host stamps and host marks of the same steps


@pytest.mark.launch
@pytest.mark.slow
def test_its_runs_on_a_cpu(tmp_path):
    done = run("--device", "cpu", "--only", "runs", "--out", str(tmp_path / "out.json"))
    no_failure(done)
    (found,) = sections(tmp_path / "out.json").values()
    assert [row["what"] for row in found if "rank" in row["what"]] == [
        "gloo-alone, 1 rank",
        "gloo-shared, 1 rank",
        "gloo-shared, 2 ranks",
        "gloo-shared, 4 ranks",
    ]
