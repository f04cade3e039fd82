"""The arithmetic of benchmarks/nccl_one_gpu.py: bars that are met, and each way to miss one."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from support.benchmark_parts import BENCHMARKS, benchmark_part

RECORDS = Path(__file__).parents[3] / "shared/data/nccl_one_h100/trace"


@pytest.fixture(scope="module")
def benchmark():
    return benchmark_part("nccl_one_gpu")


@pytest.fixture(scope="module")
def rank():
    return benchmark_part("shared_rank", BENCHMARKS / "gpu_parts")


def straggler(rank=1, phase="input", value=28.0, off=2.0):
    return {
        "rank": rank,
        "phase": phase,
        "cost_ms": {"value": value, "low": value - off, "high": value + off},
    }


def test_a_cost_is_the_difference_of_pairs_of_plain_blocks(benchmark):
    cost, error = benchmark.truth_ms({"clean": [30.0, 31.0, 30.0, 31.0], "late": [58.0, 60.0, 58.0, 60.0]})
    assert cost == pytest.approx(28.5)
    assert error == pytest.approx(2 * (1 / 3) ** 0.5 / 2)


@pytest.mark.parametrize(
    ("told", "met"),
    [
        (straggler(), True),
        (straggler(value=31.9, off=2), False),
        (straggler(value=31.9, off=3), True),
        (straggler(rank=0), False),
        (straggler(phase="forward"), False),
        (None, False),
    ],
    ids=["right", "cost too high", "known less well", "other rank", "other phase", "nobody"],
)
def test_a_late_rank_has_to_be_named_with_its_phase_and_cost(benchmark, told, met):
    row = benchmark.late_row("resnet50-ddp-1", told, (28.0, 0.5))
    assert (row.met, row.bar) == (met, "rank 1, input, 28.0 ms ±0.5")


def test_nobody_is_late_where_nothing_was_injected(benchmark):
    assert benchmark.clean_row("gpt2-ddp", None).met
    assert not benchmark.clean_row("gpt2-ddp", straggler()).met


def test_details_that_move_a_ranks_compute_miss_their_bar(benchmark):
    over = {"value": 1.004, "low": 1.001, "high": 1.007}
    calm = benchmark.details_row("gpt2-ddp", {"over_light": over, "disturbs": False})
    assert (calm.met, calm.measured) == (True, "+0.40% [+0.10%, +0.70%], moves no rank's compute")
    assert not benchmark.details_row("gpt2-ddp", {"over_light": None, "disturbs": True, "unused": ""}).met
    assert benchmark.details_row("gpt2-ddp", None).met is None


def ranks(*rows):
    return [{"traced": 2, "collectives": [{"kind": "all_reduce", "ms": ms} for ms in row]} for row in rows]


def test_what_a_collective_takes_is_the_time_of_the_rank_that_waits_least(benchmark):
    assert benchmark.kernels_ms(ranks([1.0, 5.0, 3.0, 5.2], [4.0, 2.0, 1.2, 2.2])) == pytest.approx(
        [1.1, 2.1]
    )
    assert benchmark.kernels_ms(ranks([1.0, 5.0], [4.0])) == []
    assert benchmark.kernels_ms(ranks([1.0, 5.0, 2.0], [4.0, 2.0, 2.0])) == []


@pytest.mark.parametrize(
    ("transfers", "met"),
    [
        ([0.050, 0.138, 0.128, 0.120, 0.073], [True, True]),
        ([0.059, 0.140, 0.128, 0.120, 0.073], [True, True]),  # 9 us of 50
        ([0.062, 0.138, 0.128, 0.115, 0.068], [True, False]),
        ([0.106, 0.198, 0.192, 0.176, 0.093], [False, False]),  # 50 us of each are the stamps' way
        ([0.050, 0.138, 0.128, 0.120], [False, False]),
    ],
)
def test_transfers_are_compared_with_kernels_by_step_and_by_bucket(benchmark, transfers, met):
    kernels = [0.050, 0.138, 0.128, 0.120, 0.073]
    assert [row.met for row in benchmark.transfer_rows("own", kernels, transfers, whole=None)] == met


def test_without_buckets_the_step_alone_is_compared(benchmark):
    (row,) = benchmark.transfer_rows("gpt2-fsdp", [0.2, 0.3], [], whole=0.51)
    assert (row.met, row.value) == (True, pytest.approx(0.02))
    assert not benchmark.transfer_rows("gpt2-fsdp", [], [], whole=0.51)[0].met


def test_the_kernels_of_two_ranks_of_one_h100(benchmark, rank):
    if not RECORDS.is_dir():
        pytest.skip(f"{RECORDS} is not here")
    found = []
    for number in (0, 1):
        with gzip.open(RECORDS / f"rank-{number}.json.gz", "rt") as file:
            events = json.load(file)["traceEvents"]
        found.append({"traced": 6, "collectives": rank.kernels_of(events)})
    kernels = benchmark.kernels_ms(found)
    # as the records' page has them
    assert kernels == pytest.approx([0.050, 0.138, 0.128, 0.120, 0.073], rel=0.05)
    assert sum(kernels) == pytest.approx(0.51, rel=0.02)


def test_without_a_gpu_it_says_what_runs_here(benchmark):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert "--simulated runs without one" in benchmark.missing(simulated=False)
