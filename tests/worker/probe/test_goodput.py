"""A training of 3,000 steps that is killed five times and goes on: where its time went, beside its own arithmetic."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.commands import environment
from worker.probe.restarted import STEPS, attempts

from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling.settings.schedule import PLAIN
from scaling.worker.probe.loop_file import round_of

pytestmark = pytest.mark.measures

RANKS = 2
KILLED_AT = (450, 1010, 1530, 2090, 2660)
"""Each attempt but the last one kills its ranks there, some steps behind its last save."""


def torchrun(folder: Path) -> int:
    """Start it, and return its status.

    torchrun's own --max-restarts is not used: with torch 2.13 the next attempt may hang in Gloo's connect, without a
    Probe too.
    """
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
        *("--monitor-interval=0.1", str(Path(__file__).with_name("restarted.py"))),
        *(str(folder), *map(str, KILLED_AT)),
    )
    env = environment({"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    with (folder / "said.txt").open("a") as said:
        return subprocess.run(command, env=env, check=False, timeout=120, stderr=said).returncode


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(the point, what each attempt noted)."""
    folder = tmp_path_factory.mktemp("restarted")
    statuses = [torchrun(folder) for _ in range(len(KILLED_AT) + 1)]
    assert all(statuses[:-1])
    assert statuses[-1] == 0, (folder / "said.txt").read_text()[-5000:]
    (point,) = rebuild(RunFolder(folder / "run")).analysis.points
    return point, attempts(folder)


def counted_s(noted):
    """What the steps that counted took by the training's own notes: of each attempt, those up to the next one's first.

    An attempt's steps take the mean of those that the probe leaves alone: plain ones, but the last of a block, behind
    which it works.
    """
    firsts = [attempt.steps[0][0] for attempt in noted]
    total = 0.0
    for attempt, (first, following) in zip(noted, pairwise([*firsts, STEPS + 1]), strict=True):
        blocks = [
            block for slot in range(len(attempt.steps)) for block in round_of(slot) if block.arm == PLAIN
        ]
        alone = {step for block in blocks for step in range(block.first, block.first + block.steps - 1)}
        took = [seconds for k, (_, _, seconds, _) in enumerate(attempt.steps) if k in alone]
        total += (following - first) * sum(took) / len(took)
    return total


def test_the_share_is_the_training_s_own_arithmetic(trained):
    point, noted = trained
    goodput = point.goodput
    assert (goodput.launches, goodput.steps) == (len(noted), STEPS)
    assert len(noted) == len(KILLED_AT) + 1
    wall_s = noted[-1].steps[-1][1] - noted[0].began
    started_s = goodput.wall_s - wall_s  # what the first process took to import torch
    assert 0 < started_s < goodput.start_up_s
    assert goodput.share * goodput.wall_s == pytest.approx(counted_s(noted), rel=0.02)


def test_the_parts_are_those_of_the_training_and_add_up(trained):
    """Each to 2 % of the whole; a killed launch's last steps are not known, and are time between launches."""
    point, noted = trained
    goodput = point.goodput
    twice = sum(len(attempt.steps) for attempt in noted) - STEPS
    assert 0 <= goodput.steps_done_twice <= twice
    small = 0.02 * goodput.wall_s
    counted = sum(save for attempt in noted for *_, save in attempt.steps)
    assert goodput.pauses_s == pytest.approx(counted, abs=small)
    between = sum(b.began - a.steps[-1][1] for a, b in pairwise(noted))
    unknown_s = (twice - goodput.steps_done_twice) * point.step_ms.value / 1e3
    warm_up_s = 5 * len(noted) * point.step_ms.value / 1e3
    began = goodput.between_launches_s + goodput.start_up_s + warm_up_s - unknown_s
    first_steps_s = sum(attempt.steps[4][1] - attempt.began for attempt in noted)  # warm-up
    imported_s = goodput.wall_s - (noted[-1].steps[-1][1] - noted[0].began)  # by the first process
    assert began == pytest.approx(imported_s + between + first_steps_s, abs=2 * small)
    assert abs(goodput.other_s) < 0.1 * goodput.wall_s  # disturbances are in it
    parts = (
        *(goodput.productive_s, goodput.waiting_s, goodput.done_twice_s, goodput.start_up_s),
        *(goodput.between_launches_s, goodput.pauses_s, goodput.stalls_s, goodput.other_s),
    )
    assert sum(parts) == pytest.approx(goodput.wall_s)
