"""A training of 3,000 steps that Slurm requeues five times: where its time went, beside its own arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.processes import wait_until
from worker.probe.restarted import attempts
from worker.probe.test_goodput import (
    KILLED_AT,
    RANKS,
    test_the_parts_are_those_of_the_training_and_add_up,  # noqa: F401  # collected here too
    test_the_share_is_the_training_s_own_arithmetic,  # noqa: F401
)

import scaling
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder

ROOT = Path(scaling.__file__).parents[1]
SCRIPT = ROOT / "tests/worker/probe/restarted.py"


@pytest.fixture(scope="module")
def trained(slurm, at_login, tmp_path_factory):
    folder = tmp_path_factory.mktemp("requeued")
    login = at_login(slurm, folder)
    (folder / "job.sh").write_text(
        f"""#!/bin/sh
export PYTHONPATH={ROOT} GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
exec {sys.executable} -m torch.distributed.run --standalone --nproc-per-node={RANKS} {SCRIPT} {folder}
"""
    )
    asked = ("--partition=pcie", "--nodes=1", "--exclusive", "--requeue", "--open-mode=append")
    done = slurm.run("sbatch", "--parsable", *asked, "--output=said.txt", "job.sh", cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    for k, at in enumerate(KILLED_AT):
        wait_until(lambda k=k, at=at: _steps(folder, k) >= at, seconds=120)
        assert slurm.run("scontrol", "requeue", job).returncode == 0
    login.until_over(job)
    assert login.state(job) == "COMPLETED", (folder / "said.txt").read_text()[-5000:]
    (point,) = rebuild(RunFolder(folder / "run")).analysis.points
    return point, attempts(folder)


def _steps(folder: Path, attempt: int) -> int:
    """The last step of an attempt so far."""
    path = folder / f"attempt-{attempt}.txt"
    rows = path.read_text().splitlines()[1:] if path.exists() else []
    return int(rows[-1].split()[0]) if rows else 0
