"""Eight real ranks, and the numbers of HolisticTraceAnalysis.

benchmarks/traces.py runs HTA itself on them; the figures here are those that its version 0.5.0 printed.
"""

import json

import pytest

from scaling.cli.main import main

TRACES = "traces/dlrm_v100x8_param"
HTA = (  # rank: idle, compute, non-compute, kernel us
    (6419, 1034, 5556, 13009),
    (6428, 1246, 11075, 18749),
    (7046, 1068, 3236, 11350),
    (8145, 1240, 9468, 18853),
    (8887, 1126, 6576, 16589),
    (9121, 1041, 6230, 16392),
    (7051, 1051, 3308, 11410),
    (8308, 1059, 1600, 10967),
)


@pytest.fixture
def found(shared, capsys):
    assert main(["trace", str(shared(TRACES)), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_decomposition_agrees_where_definitions_do(found):
    for rank, (idle, compute, rest, whole) in zip(found["trace"][0]["ranks"], HTA, strict=True):
        us = {k.removesuffix("_ms"): v["value"] * 1e3 for k, v in rank.items() if k.endswith("_ms") and v}
        assert us["step"] == pytest.approx(whole)
        assert us["compute"] == pytest.approx(compute)
        assert us["exposed"] + us["copies"] == pytest.approx(rest)
        assert us["input"] + us["host"] + us["launch"] + us["idle"] == pytest.approx(idle)
        assert us["exposed_transfer"] + us["exposed_skew"] == pytest.approx(us["exposed"])


def test_collectives_are_matched_and_end_together(found):
    (traced,) = found["trace"]
    assert sum(c["count"] for c in traced["collectives"]) == 8
    assert {c["bytes"] for c in traced["collectives"] if c["collective"] == "all_reduce"} == {
        448,
        907840,
        1576964,
    }
    assert traced["end_spread_us"]["value"] < 10
    assert found["points"][0]["straggler"]["rank"] == 7


@pytest.mark.parametrize(
    "name", ["30_nccl_annotations_no_device_no_distinfo.json", "31_cuda_calls_no_device_events.json"]
)
def test_a_device_that_left_no_events_is_incomplete_and_has_no_remedy(shared, capsys, name):
    assert main(["trace", str(shared(f"wild/{name}")), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["points"][0]["status"], found["run"]["backend"]) == ("incomplete", "nccl")
    assert [(v["cause"], v["try"]) for v in found["verdicts"]] == [("undecided", [])]
    assert "it used a device, but its trace has no events of one" in found["trials"][0]["error"]


def test_a_loader_without_workers_is_named_by_its_class(shared, capsys):
    assert main(["trace", str(shared("wild/32_single_process_loader.json")), "--json"]) == 0
    verdict, *_ = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"] == "input"
    assert "num_workers" in verdict["try"][0]["code"]
