"""One's own script under `scaling launch`: real torchrun, real Gloo."""

import json
import signal
import time
from pathlib import Path

import pytest
from support.commands import start_scaling
from support.processes import wait_until

from scaling.worker.probe.agreement import WAIT

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).with_name("scripts")
SIZES = ("--world-sizes", "1,2", "topology=local", "topology.device=cpu", "topology.ranks_per_host=2")


def document(folder):
    return json.loads((folder / "study.json").read_text())


@pytest.fixture(scope="module")
def probed(scaling, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("probed")
    return cwd, scaling("launch", *SIZES, "run_dir=run", str(SCRIPTS / "probed.py"), "--steps", "50", cwd=cwd)


def test_a_script_is_launched_in_turns_and_ends_in_a_study(probed):
    cwd, done = probed
    assert done.returncode == 0, done.stderr
    started = json.loads((cwd / "run/launch.json").read_text())
    assert [one["world_size"] for one in started["launches"]] == [1, 2, 1, 2]
    found = document(cwd / "run")
    assert [p["world_size"] for p in found["points"]] == [1, 2]
    assert found["points"][1]["efficiency"]["low"] is not None
    assert found["study"]["covers"] == "launches"
    assert [len(run["launch_ms"]) for run in found["study"]["runs"]] == [2, 2]
    assert found["run"]["model"] == "two layers"
    assert (cwd / "run/study.html").is_file()
    assert "efficiency" in done.stdout


def test_the_study_is_made_again_and_printed_by_report_and_compare(probed, scaling):
    cwd, _ = probed
    again = scaling("study", "run", "--json", cwd=cwd)
    assert json.loads(again.stdout)["points"] == document(cwd / "run")["points"]
    ranks = [f"run/ranks-{n}" for n in (1, 2)]
    assert "this is their scaling study" in scaling("compare", *ranks, cwd=cwd).stdout
    refused = scaling("analyze", "run", cwd=cwd)
    assert refused.returncode == 2
    assert "scaling study run" in refused.stderr


def test_without_a_line_in_the_script_the_late_rank_is_found(scaling, tmp_path):
    done = scaling(
        "launch",
        "--no-probe",
        *SIZES,
        "repeats=1",
        "run_dir=run",
        str(SCRIPTS / "unchanged.py"),
        "90",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = document(tmp_path / "run")
    late = found["points"][1]["straggler"]
    assert (late["rank"], late["phase"]) == (1, "input")
    assert 25 < late["cost_ms"]["value"] < 60
    assert found["run"]["model"] == "Sequential"  # the larger one of two models
    assert found["study"]["covers"] == "within"
    assert any("--no-probe" in line for line in found["quality"]["warnings"])


def test_stages_that_wait_for_each_other_are_followed_without_a_line(scaling, tmp_path):
    begin = time.monotonic()
    done = scaling(
        "launch", "--no-probe", *SIZES, "repeats=1", "run_dir=run", str(SCRIPTS / "stages.py"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "the training goes on" not in done.stderr
    assert time.monotonic() - begin < WAIT.total_seconds()  # no rank waited in vain for another one
    late = document(tmp_path / "run")["points"][1]["straggler"]
    assert (late["rank"], late["phase"]) == (1, "input")
    assert 25 < late["cost_ms"]["value"] < 60


def test_a_sharded_training_that_is_too_short_is_called_so(scaling, tmp_path):
    (tmp_path / "short.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.Linear(64, 64)\n"
        "fully_shard(model)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for _ in range(8):\n"
        "    model(torch.randn(8, 64)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    done = scaling("launch", "--no-probe", *SIZES, "repeats=1", "run_dir=run", "short.py", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "the loop ended after 6 steps, before the first round of ten was whole; train for more steps"
        in done.stderr
    )


def test_a_script_that_fails_at_one_size_is_said_in_one_line_and_not_launched_again(scaling, tmp_path):
    done = scaling(
        "launch", *SIZES, "run_dir=run", str(SCRIPTS / "probed.py"), "--fails-at", "2", cwd=tmp_path
    )
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("scaling: probed.py at 2 ranks")]
    assert "rank 1: ValueError: no such data set: imagenet" in line
    assert done.stderr.count("at 2 ranks") == 2  # its start and its end
    assert "only world size 1 was measured" in done.stderr


ODD = {
    "prints": ("for _ in range(65):\n    print('x' * 2**20)\n", "no Probe was opened"),
    "removes": (
        "import os, shutil\nshutil.rmtree(os.path.dirname(os.environ['SCALING_RUN_DIR']))\n",
        "was removed while odd.py ran",
    ),
    "pipe": (
        "import os\nplace = os.environ['SCALING_RUN_DIR'] + '/launches/0'\n"
        "os.makedirs(place)\nos.mkfifo(place + '/rank-0.jsonl')\n",
        "nothing was measured",
    ),
}
"""Scripts that leave nothing to read, and what is said of them."""


@pytest.mark.parametrize("kind", ODD)
def test_a_script_that_leaves_nothing_to_read_is_said_in_a_line(scaling, tmp_path, kind):
    text, said = ODD[kind]
    (tmp_path / "odd.py").write_text(text)
    done = scaling("launch", *SIZES, "run_dir=run", "odd.py", cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_everything_and_keeps_what_was_measured(tmp_path, left_behind):
    run = start_scaling(
        "launch", *SIZES, "run_dir=run", str(SCRIPTS / "probed.py"), "--steps", "100000", cwd=tmp_path
    )
    wait_until(lambda: any((tmp_path / "run").glob("ranks-1/launches/0/rank-0.jsonl")), run, seconds=120)
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 3, err
    assert left_behind(tmp_path) == []
    assert any((tmp_path / "run").glob("ranks-1/launches/0/rank-0.jsonl"))
