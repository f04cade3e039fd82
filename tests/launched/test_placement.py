"""Ranks that go round the hosts: two emulated hosts of two ranks each."""

from __future__ import annotations

import json

import pytest

RUN = (
    "topology=emulated_pcie",
    "topology.hosts=2",
    "topology.ranks_per_host=2",
    "topology.placement=spread",
    "topology.link.rate=500mbit",
    "world_sizes=[2,4]",
    "model=synthetic",
    "model.param_mb=2",
    "model.compute_ms=20",
    "measure=quick",
    "measure.budget_s=10",
)


def test_emulated_ranks_that_are_spread_talk_over_the_network(scaling, tmp_path, analysis_of, point_of):
    done = scaling("run", *RUN, "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    heads = [json.loads((run / f"launches/0/rank-{r}.jsonl").open().readline()) for r in range(4)]
    assert [head["host"] for head in heads] == [0, 1, 0, 1]
    two, four = (point_of(run, n) for n in (2, 4))
    assert (two["hosts"], four["hosts"]) == (2, 2)
    levels = {level["world_size"]: level for level in analysis_of(run)["fabric"]["levels"]}
    assert levels[2]["name"] == "network"
    assert two["comm"]["nominal_share"]["value"] == pytest.approx(1.0, rel=0.15)
    assert four["comm"]["nominal_share"] is None
