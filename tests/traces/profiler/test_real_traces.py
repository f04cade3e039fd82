"""Eight real ranks: the numbers of HolisticTraceAnalysis, and what they say of each other.

benchmarks/traces.py runs HTA itself on them; the figures here are those that its version 0.5.0 printed.
"""

import json

import pytest

from scaling.cli.main import main

TRACES = "traces/dlrm_v100x8_param"
HTA = (  # rank: idle, compute, non-compute, kernel us; overlap %
    (6419, 1034, 5556, 13009, 4.50),
    (6428, 1246, 11075, 18749, 2.47),
    (7046, 1068, 3236, 11350, 7.88),
    (8145, 1240, 9468, 18853, 3.31),
    (8887, 1126, 6576, 16589, 0.56),
    (9121, 1041, 6230, 16392, 0.64),
    (7051, 1051, 3308, 11410, 7.56),
    (8308, 1059, 1600, 10967, 9.51),
)
TYPES = {
    "COMMUNICATION": 46880,
    "COMPUTATION": 7213,
    "COMPUTATION overlapping COMMUNICATION": 1652,
    "MEMORY": 159,
    "COMMUNICATION overlapping MEMORY": 10,
}


@pytest.fixture
def found(shared, capsys):
    assert main(["trace", str(shared(TRACES)), "--json", "--hta"]) == 0
    return json.loads(capsys.readouterr().out)


def test_hta_s_quantities(found):
    hta = found["trace"][0]["hta"]
    for row, (idle, compute, rest, whole, overlap) in zip(hta["ranks"], HTA, strict=True):
        times = [row[f"{key}_us"] for key in ("idle", "compute", "non_compute", "kernel")]
        assert times == [idle, compute, rest, whole]
        assert row["overlap_percent"] == pytest.approx(overlap, abs=0.005)
    assert {t["kernel_type"]: t["sum_us"] for t in hta["kernel_types"]} == TYPES


def test_the_decomposition_agrees_where_definitions_do(found):
    for rank, (idle, compute, rest, whole, _) in zip(found["trace"][0]["ranks"], HTA, strict=True):
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
