"""Strategies side by side as they are read: a row each, and which and why in a sentence."""

import pytest
from support.results import about, comm

from scaling.analysis.results import (
    Degrees,
    Loss,
    Measured,
    PeakMemory,
    Point,
    StrategyAtSize,
    StrategyResult,
)
from scaling.report.strategies import strategies_answer, strategy_table

MIB = 2**20


def strategy(name, step_ms, ratio=None, *, apart=True, bandwidth=0.2, held=30, status="done"):
    """At 4 ranks; `held`: MiB of each of parameters, gradients and optimizer."""
    shard = {"ddp": 1, "fsdp": 4, "hsdp": 2}[name]
    degrees = Degrees(strategy=name, replicate=4 // shard, shard=shard)
    memory = PeakMemory(parameters_bytes=held * MIB, gradients_bytes=held * MIB, optimizer_bytes=held * MIB)
    point = Point(
        world_size=4,
        hosts=2,
        status=status,
        step_ms=about(step_ms, 1.0) if step_ms else None,
        efficiency=about(0.5, 0.01),
        loss=Loss(link_bandwidth=about(bandwidth, 0.01), straggler=about(0.01, 0.01)),
        comm=comm(12 * MIB, buckets=()),
        memory=memory,
        parallel=degrees,
    )
    against = StrategyAtSize(
        world_size=4,
        throughput=None if ratio is None else Measured(ratio, ratio - 0.01, ratio + 0.01, 9),
        distinguishable=ratio is not None and apart,
    )
    return StrategyResult(parallel=degrees, points=(point,), memory=memory, against_first=(against,))


DDP = strategy("ddp", 100.0, bandwidth=0.4)
HSDP = strategy("hsdp", 80.0, 1.25, bandwidth=0.1, held=15)


def test_the_fastest_is_named_with_its_reason_and_what_it_holds():
    said = strategies_answer([DDP, HSDP])
    assert said.startswith("At 4 ranks hsdp is fastest: hsdp has 1.250 ±0.010 times the throughput of ddp")
    assert "ddp loses 40 ms of a step to link bandwidth, hsdp 8" in said
    assert "A rank holds parameters, gradients and optimizer of ddp 90 MiB, hsdp 45 MiB." in said


def test_the_first_can_be_the_fastest():
    said = strategies_answer([DDP, strategy("fsdp", 140.0, 0.7, bandwidth=0.6)])
    assert said.startswith("At 4 ranks ddp is fastest: fsdp has 0.7")


def test_what_is_not_distinguishable_is_not_ranked():
    said = strategies_answer([DDP, strategy("fsdp", 99.0, 1.01, apart=False)])
    assert said.startswith("At 4 ranks ddp and fsdp are not distinguishable in speed")
    assert "fastest" not in said


def test_one_that_did_not_fit_is_said():
    said = strategies_answer([strategy("fsdp", 99.0), strategy("ddp", None, status="oom")])
    assert said == "Only fsdp could be measured. ddp did not fit into memory."


def test_a_row_for_each():
    table = strategy_table([DDP, HSDP])
    names = [name for name, _ in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert [tuple(row[name] for name in ("strategy", "mesh", "ranks")) for row in rows] == [
        ("ddp", "4 x 1", "4"),
        ("hsdp", "2 x 2", "4"),
    ]
    assert [row["times"] for row in rows] == ["1", "1.250 ±0.010"]
    assert [row["state"] for row in rows] == ["90", "45"]


@pytest.mark.parametrize(
    "found", [[], [strategy("ddp", None, status="oom"), strategy("fsdp", None, status="oom")]]
)
def test_nothing_is_said_where_nothing_ran(found):
    assert strategies_answer(found) == ""


def test_those_that_are_not_told_from_the_first_share_its_place():
    said = strategies_answer([DDP, strategy("fsdp", 140.0, 0.7), strategy("hsdp", 98.0, 1.02, apart=False)])
    assert said.startswith("At 4 ranks ddp and hsdp are fastest: ")
    assert "hsdp has 1.020 ±0.010 times the throughput of ddp, which is not distinguishable" in said


def test_strategies_that_are_not_told_from_each_other_are_both_the_fastest():
    """Each was measured against the first alone: 1.30 and 1.29 are both above it, and alike."""
    said = strategies_answer([DDP, strategy("fsdp", 77.0, 1.30), strategy("hsdp", 77.5, 1.29)])
    assert said.startswith("At 4 ranks fsdp and hsdp are fastest: ")


def test_what_is_not_told_from_the_fastest_may_be_alike_with_the_first_too():
    said = strategies_answer([DDP, strategy("fsdp", 97.0, 1.030), strategy("hsdp", 97.5, 1.025, apart=False)])
    assert said.startswith("At 4 ranks fsdp and hsdp are fastest: ")
