"""Ranks that go round the hosts: two emulated hosts of two ranks each, and four of one, of which one is slow."""

import json

import pytest

SPREAD = (
    "topology=emulated_pcie",
    "topology.placement=spread",
    "topology.link.rate=500mbit",
    "world_sizes=[2,4]",
    "model=synthetic",
    "model.param_mb=0.25",
    "model.compute_ms=5",
    "measure=quick",
    "measure.steps=3",
    "measure.lead_in=1",
    "measure.fabric_max=16KiB",
    "tracking=disabled",
)
SLOW = 2
FAULT = (f"inject.rank={SLOW}", "inject.compute_ms=20", "inject.link_rate=75mbit")


@pytest.mark.slow
def test_emulated_ranks_that_are_spread_talk_over_the_network(measured, analysis_of, point_of):
    two_by_two = ("topology.hosts=2", "topology.ranks_per_host=2", "measure.budget_s=30")
    run, _ = measured(*SPREAD, *two_by_two)
    heads = [json.loads((run / f"launches/0/rank-{r}.jsonl").open().readline()) for r in range(4)]
    assert [head["host"] for head in heads] == [0, 1, 0, 1]
    two, four = (point_of(run, n) for n in (2, 4))
    assert (two["hosts"], four["hosts"]) == (2, 2)
    levels = {level["world_size"]: level for level in analysis_of(run)["fabric"]["levels"]}
    assert levels[2]["name"] == "network"
    assert two["comm"]["nominal_share"] is four["comm"]["nominal_share"] is None  # both hosts share a link
    assert [host["ranks"] for host in analysis_of(run)["hosts"]] == [[0, 2], [1, 3]]


@pytest.mark.slow
@pytest.mark.measures
def test_emulated_hosts_work_at_the_same_time_and_the_slow_one_is_named(measured, analysis_of, point_of):
    four = ("topology.hosts=4", "topology.ranks_per_host=1", "measure.collectives=[all_reduce,broadcast]")
    rounds = ("measure.rounds_min=5", "measure.rounds_max=5", "measure.budget_s=40")
    run, _ = measured(*SPREAD, *FAULT, *four, *rounds)
    files = [(run / f"launches/0/rank-{r}.jsonl").read_text().splitlines() for r in range(4)]
    groups = [json.loads(lines[0])["groups"] for lines in files]
    assert [g["2"] for g in groups] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [g["-2"] for g in groups] == [[0, 3], [1, 2], [1, 2], [0, 3]]
    blocks = [[b for b in map(json.loads, lines) if b["t"] == "block"] for lines in files]
    first, *others = [{b["id"] for b in of if b["world_size"] == 2} for of in blocks]
    assert first
    assert all(ids == first for ids in others)
    begun = [{b["id"]: (b["begin_ns"], b["end_ns"]) for b in of if b["arm"] == "bare_all"} for of in blocks]
    for number, (begin, end) in begun[0].items():  # one clock: one machine
        assert max(begin, begun[3][number][0]) < min(end, begun[3][number][1])

    hosts = analysis_of(run)["hosts"]
    assert {host["host"]: host["slow_in"] for host in hosts if host["slow_in"]} == {SLOW: ["step", "link"]}
    assert hosts[SLOW]["step_ratio"]["value"] > 2  # 25 ms over 5, and what the machine adds to both
    assert hosts[SLOW]["link_gbit_s"]["value"] == pytest.approx(0.075 * 1448 / 1514, rel=0.15)
    assert hosts[SLOW]["link_ratio"]["value"] == pytest.approx(75 / 500, rel=0.4)  # 2 cores feed four links
    assert f"Host {SLOW} " in (run / "report.txt").read_text()
    first_step_ms = point_of(run, 2)["step_ms"]["value"]  # of the first sub-group, which has no slow host
    assert first_step_ms < hosts[SLOW]["step_ms"]["value"]
