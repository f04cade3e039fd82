"""Operators against ceilings with known answers."""

from __future__ import annotations

import pytest

from scaling.analysis.results import Measured
from scaling.analysis.roofline import explain, median, roofline
from scaling.checkup import COPY, MATMUL, STEP_OPS, TO_DEVICE_PINNED, Ceiling, Operator, StepWork


def ceilings(flop_s=1e12, memory=1e11, launches=1e6, cache=1e12, transfer=None):
    found = [
        Ceiling(name=MATMUL + "fp32", unit="FLOP/s", size=1024, best=flop_s, repeats=7),
        Ceiling(name=COPY, unit="bytes/s", size=2**20, best=cache, repeats=7),
        Ceiling(name=COPY, unit="bytes/s", size=2**28, best=memory, repeats=7),
        Ceiling(name=STEP_OPS, unit="1/s", size=192, best=launches, repeats=7),
    ]
    if transfer:
        found.append(Ceiling(name=TO_DEVICE_PINNED, unit="bytes/s", size=2**26, best=transfer, repeats=7))
    return found


def of(*operators, step_ms=20.0, input_bytes=0, input_ms=None, **limits):
    work = StepWork(
        batch=8,
        precision="fp32",
        operators=operators,
        sightings=(),
        input_bytes=input_bytes,
        same_shapes=True,
    )
    return roofline(
        ceilings(**limits),
        work,
        Measured(step_ms),
        rank=0,
        device="cpu: test",
        input_ms=None if input_ms is None else Measured(input_ms),
    )


def op(flops=0, size=0, count=1, name="mm"):
    return Operator(name=name, layer="0", count=count, flops=flops, bytes=size)


def test_a_matrix_chain_is_compute_bound_and_its_mfu_is_the_share_of_the_product():
    found = of(op(flops=10**10, size=10**6))
    assert found.bound == "compute"
    assert found.least_ms["compute"].value == pytest.approx(10)
    assert found.mfu.value == pytest.approx(0.5)


def test_many_bytes_for_few_flops_are_memory_bound():
    found = of(op(flops=10**8, size=10**9))
    assert found.bound == "memory"
    assert found.least_ms["memory"].value == pytest.approx(10)


def test_what_fits_a_cache_is_held_to_the_caches_rate():
    found = of(op(flops=1, size=2 * 10**6, count=2))
    assert found.top[0].least_ms.value == pytest.approx(2e6 / 1e12 * 1e3)


def test_thousands_of_tiny_operators_are_launch_bound():
    found = of(op(flops=1), op(size=8, count=10_000, name="add"), step_ms=15.0)
    assert found.bound == "launch"
    assert found.least_ms["launch"].value == pytest.approx(10, rel=1e-3)


def test_a_batch_that_is_waited_for_is_input_bound():
    assert of(op(flops=10**9), input_ms=12.0).bound == "input"


def test_a_batch_that_is_copied_for_long_is_transfer_bound():
    found = of(op(flops=10**9), input_bytes=10**8, input_ms=10.0, transfer=1e10)
    assert found.bound == "host_transfer"
    assert found.least_ms["input"].value == 0


def test_a_step_that_no_ceiling_explains_says_so():
    assert of(op(flops=10**9), step_ms=100.0).bound == "none"


def test_a_step_that_is_faster_than_its_ceiling_says_that_the_ceiling_is_wrong():
    found = of(op(flops=3 * 10**10), step_ms=20.0)
    assert found.bound == "compute"
    assert "alone would take 30 ms, and the step took 20: they were measured too low" in found.said


def test_without_flops_there_is_no_roofline():
    assert of(op(size=10**9)) is None


def test_a_faster_device_that_trains_no_faster_hits_another_ceiling():
    slow = of(op(flops=10**10, size=10**8), step_ms=12.0)
    fast = of(op(flops=10**10, size=10**8), op(size=8, count=10_000, name="add"), step_ms=14.0, flop_s=1e13)
    fast = fast.__class__(**{f: getattr(fast, f) for f in fast.__slots__} | {"device": "cuda: faster"})
    said = explain(slow, fast)
    assert said[0].startswith("base: compute-bound")
    assert said[1].startswith("other: launch-bound")
    assert "10 times as fast on the other device (cuda: faster) and a step 0.86 times" in said[2]
    assert explain(slow, None) == ()


def test_the_median_has_its_order_statistics():
    assert median([]) is None
    assert median([3_000_000]) == Measured(3.0, n=1)
    found = median([k * 1_000_000 for k in range(1, 9)])
    assert (found.value, found.low, found.high, found.n) == (4.5, 2.0, 7.0, 8)
