"""Real data: a dataset that sleeps starves the steps, the report says by how much, and its advice mends it."""

import pytest

SLEEPY = """
import time, torch

class Sleepy(torch.utils.data.Dataset):
    late = 0.0  # a crowded machine wakes it late: the next sample sleeps the less, so that batches take 40 ms

    def __len__(self):
        return 256

    def __getitem__(self, index):
        begin = time.perf_counter()
        due = 0.005 - self.late
        time.sleep(max(0.0, due))
        self.late = min(time.perf_counter() - begin - due, 0.1)
        return torch.ones(1), torch.zeros(1)
"""
STARVED = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "world_sizes=[2]",
    "model=synthetic",
    "model.param_mb=1",
    "model.compute_ms=15",
    "model.reference_batch=8",
    "batch_per_rank=8",  # 40 ms of making
    "data._target_=mine.Sleepy",
    "measure=quick",
    "measure.budget_s=25",
    "measure.rounds_max=6",
    "tracking=disabled",
)


@pytest.mark.slow
@pytest.mark.measures
def test_starvation_is_named_with_its_share_and_the_advised_workers_mend_it(
    scaling, tmp_path, analysis_of, point_of, left_behind
):
    (tmp_path / "mine.py").write_text(SLEEPY)
    done = scaling("run", *STARVED, "data.workers=1", "run_dir=hungry", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hungry = point_of(tmp_path / "hungry", 2)
    main = analysis_of(tmp_path / "hungry")["verdicts"][0]
    assert main["cause"] == "input"
    assert "of every step waits for input" in " ".join(done.stdout.split())
    (remedy,) = main["try"]
    assert remedy["overrides"].startswith("data.workers=")

    mended = scaling("run", *STARVED, remedy["overrides"], "run_dir=fed", cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr
    fed = point_of(tmp_path / "fed", 2)
    assert fed["loader"]["wait_share"]["value"] < main["share"]["value"] / 5
    truth = 1 - fed["step_ms"]["value"] / hungry["step_ms"]["value"]
    assert main["share"]["value"] == pytest.approx(truth, abs=0.05)
    assert hungry["loader"]["make_ms"]["value"] == pytest.approx(40, abs=5)
    assert not left_behind(tmp_path)
