"""What is said of DDP's broadcast of buffers, seen or not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from scaling.analysis.quality import unseen


@pytest.fixture(scope="module")
def run(cluster, measure):
    return measure(
        cluster.Truth(world_sizes=(2,), hosts=2, buffers_ns=1e6, rounds=3, steps=4, step_noise=0.0)
    )


def test_buffers_that_were_seen_are_said_with_their_share(run):
    (said,) = unseen.warnings(run.tables, run.plan, 2048)
    share = float(re.search(r"forward: ([\d.]+)%", said)[1])
    assert share == pytest.approx(100 * 1e6 / run.expected.points[2].step_ns["probe"], rel=0.15)
    assert said.startswith("the module has 2 KiB of buffers")
    assert unseen.doubts(run.tables, run.plan, 2048) == ()


def test_buffers_that_were_not_seen_make_every_finding_a_hint(run):
    steps = run.tables.steps.with_columns(buffer_wait_ns=0)
    tables = replace(run.tables, steps=steps)
    (said,) = unseen.warnings(tables, run.plan, 2048)
    assert "not seen" in said
    assert "a hint, not a finding" in unseen.doubts(tables, run.plan, 2048)[0]


def test_a_module_without_buffers_says_nothing(run):
    assert unseen.warnings(run.tables, run.plan, 0) == unseen.doubts(run.tables, run.plan, 0) == ()
