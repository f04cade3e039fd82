"""A training that fails twice and is started again: where its time went, beside its own arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from worker.probe.restarted import FAILS_AT, SAVED_EVERY, STEPS

import scaling
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder

pytestmark = pytest.mark.measures

RANKS = 2


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """(the point, what each attempt noted)."""
    folder = tmp_path_factory.mktemp("restarted")
    command = (
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
        *(str(Path(__file__).with_name("restarted.py")), str(folder)),
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(scaling.__file__).parents[1]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    for attempt in range(len(FAILS_AT) + 1):
        each = [sys.executable, *command, str(attempt)]
        ended = subprocess.run(each, env=environment, check=False, timeout=120, capture_output=True)
        assert (ended.returncode == 0) == (attempt == len(FAILS_AT)), ended.stderr
    noted = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    (point,) = rebuild(RunFolder(folder / "run")).analysis.points
    return point, noted


def test_steps_that_counted_and_steps_done_twice_are_those_of_the_training(attempts):
    point, noted = attempts
    twice = sum(at % SAVED_EVERY for at in FAILS_AT)
    assert (point.goodput.launches, point.goodput.steps) == (len(noted), STEPS)
    assert point.goodput.steps_done_twice == twice == sum(len(a["steps"]) for a in noted) - STEPS


def test_the_share_is_the_training_s_own_arithmetic(attempts):
    point, noted = attempts
    steps = sorted(step for attempt in noted for step in attempt["steps"])
    usual = steps[len(steps) // 20 : -len(steps) // 20]  # without warm-up and disturbances
    wall_s = noted[-1]["ended"] - noted[0]["began"]
    started_s = point.goodput.wall_s - wall_s  # what the first process took to import torch
    assert 0 < started_s < point.goodput.start_up_s
    assert point.goodput.share * point.goodput.wall_s == pytest.approx(
        STEPS * sum(usual) / len(usual), rel=0.05
    )


def test_the_parts_are_those_of_the_training_and_add_up(attempts):
    point, noted = attempts
    goodput = point.goodput
    saves = sum(save for attempt in noted for save in attempt["saves"])
    assert goodput.pauses_s == pytest.approx(saves, rel=0.1)
    parts = (
        *(goodput.productive_s, goodput.waiting_s, goodput.done_twice_s, goodput.start_up_s),
        *(goodput.between_launches_s, goodput.pauses_s, goodput.stalls_s, goodput.other_s),
    )
    assert sum(parts) == pytest.approx(goodput.wall_s)
    assert abs(goodput.other_s) < 0.1 * goodput.wall_s
