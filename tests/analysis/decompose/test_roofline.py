"""Operators against ceilings with known answers.

MFU, HFU and tokens a second beside the measured steps.
"""

import pytest
from support.roofline import kernels, of, op

from scaling.analysis.decompose.roofline import explain, with_tokens, with_utilisation
from scaling.analysis.results import Measured, Point
from scaling.analysis.statistics.rounds import median


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
    assert found.least_ms["memory"].value == pytest.approx(2e6 / 1e12 * 1e3)


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


def test_a_device_whose_kernels_fill_a_fifth_of_a_step_waits_for_its_host():
    """As an H200 with a small model: the fastest launches explain a quarter of what the host takes."""
    found = of(op(flops=10**8), step_ms=1.8, launches=1e5, kernels=kernels(1.3, 0.26))
    assert found.bound == "launch"
    assert found.said.startswith("launch-bound: in 80% of a step the device waits for the host to launch")


@pytest.mark.parametrize(
    "table", [kernels(20, 19), kernels(20, 25), kernels(20, 2, batch=4), kernels(20, 2, slept_ms=15)]
)
def test_a_busy_device_another_batch_and_a_model_that_sleeps_do_not(table):
    assert of(op(flops=10**9), kernels=table).bound == "none"


def test_a_device_that_is_busy_is_not_bound_by_launches_whatever_their_ceiling():
    slow = {"launches": 1e3, "step_ms": 20.0}
    assert of(op(flops=1, count=10), **slow).bound == "launch"
    assert of(op(flops=1, count=10), **slow, kernels=kernels(20, 19)).bound == "none"


def test_what_is_behind_the_ceiling_of_launches_is_the_bound_of_a_busy_device():
    work = (op(flops=10**10), op(size=8, count=15_000, name="add"))
    assert of(*work).bound == "launch"
    assert of(*work, kernels=kernels(20, 19)).bound == "compute"
    assert of(*work, kernels=kernels(20, 4)).bound == "launch"


def test_what_a_ceiling_explains_stays_where_the_device_waits_too():
    assert of(op(flops=10**10), kernels=kernels(20, 10)).bound == "compute"


def test_a_step_above_the_peak_stays_above_it_and_says_why():
    found = of(op(flops=3 * 10**10), step_ms=20.0)
    assert found.bound == "compute"
    assert found.mfu.value == pytest.approx(1.5)
    assert (
        "compute alone would take 30 ms, and the step took 20 ms; MFU 150% of the fp32 matrix" in found.said
    )
    assert "products of these shapes run faster than the one measured" in found.above
    assert found.above in found.said
    assert "need fewer operations than are counted" in of(op(flops=3 * 10**10, name="convolution")).above
    assert of(op(flops=10**10)).above == ""


def test_a_step_faster_than_the_memory_was_in_a_cache():
    assert "some of what counts as read was in a cache" in of(op(flops=1, size=4 * 10**9), step_ms=20.0).said


def test_the_better_of_product_and_convolution_is_the_peak():
    found = of(op(flops=10**10), flop_s=1e12, convolution=2e12)
    assert found.mfu.value == pytest.approx(0.25)
    assert found.peak_is == "the fp32 convolution measured under load"
    assert of(op(flops=10**10), flop_s=1e12, convolution=5e11).mfu.value == pytest.approx(0.5)


def test_a_known_device_is_held_to_its_data_sheet():
    found = of(op(flops=10**10), device_name="NVIDIA H100 80GB HBM3")
    assert found.peak.best.value == 67e12
    assert found.peak_is == "the data sheet's fp32 peak"
    assert found.mfu.value == pytest.approx(10**10 / 0.020 / 67e12)
    assert found.ceilings[0].name == "data_sheet_fp32"
    above = of(op(flops=10**10), step_ms=0.1, device_name="NVIDIA H100 80GB HBM3").above
    assert above == "above 100 %: the device ran at a higher clock than its data sheet assumes"


def test_what_checkpointing_runs_again_counts_for_the_hardware_only():
    found = of(op(flops=4 * 10**9), op(flops=10**9), recomputed_flops=10**9, step_ms=10.0)
    assert found.hfu.value == pytest.approx(0.5)
    assert found.mfu.value == pytest.approx(0.4)
    assert "MFU 40% of the fp32 matrix product measured under load, HFU 50%" in found.said


def test_another_world_size_may_be_the_one_that_is_above_the_peak():
    found = of(op(flops=10**10), step_ms=20.0, also_ms=[Measured(8.0)])
    assert found.mfu.value == pytest.approx(0.5)
    assert found.above


def test_without_flops_there_is_no_roofline():
    assert of(op(size=10**9)) is None


def test_a_faster_device_that_trains_no_faster_hits_another_ceiling():
    slow = of(op(flops=10**10, size=10**8), step_ms=12.0)
    fast = of(op(flops=10**10, size=10**8), op(size=8, count=10_000, name="add"), step_ms=14.0, flop_s=1e13)
    fast = fast.__class__(**{f: getattr(fast, f) for f in fast.__slots__} | {"device": "cuda: faster"})
    said = explain(slow, fast)
    assert said[0].startswith("base: compute-bound")
    assert said[1].startswith("other: launch-bound")
    assert "device (cuda: faster) is 10 times as high, and a step is 0.86 times as fast" in said[2]
    assert explain(slow, None) == ()


def test_the_median_has_its_order_statistics():
    assert median([]) is None
    assert median([3_000_000]) == Measured(3.0, n=1)
    found = median([k * 1_000_000 for k in range(1, 9)])
    assert (found.value, found.low, found.high, found.n) == (4.5, 2.0, 7.0, 8)


POINTS = (
    Point(
        world_size=1,
        hosts=1,
        status="done",
        step_ms=Measured(20.0, 19.0, 21.0, 5),
        samples_per_s=Measured(400.0),
    ),
    Point(world_size=2, hosts=2, status="done", step_ms=Measured(40.0)),
    Point(world_size=4, hosts=4, status="failed"),
)


def test_a_point_has_the_share_of_the_peak_with_its_interval():
    found = with_utilisation(POINTS, of(op(flops=10**10), recomputed_flops=2 * 10**9), {1, 2, 4})
    assert found[0].hfu.value == pytest.approx(0.5)
    assert found[0].mfu.value == pytest.approx(0.4)
    assert found[0].mfu.low == pytest.approx(0.4 * 20 / 21)
    assert found[1].hfu.value == pytest.approx(0.25)
    assert found[2].mfu is None


def test_a_point_with_another_batch_has_none():
    found = with_utilisation(POINTS, of(op(flops=10**10)), {2})
    assert [p.mfu is None for p in found] == [True, False, True]
    assert with_utilisation(POINTS, None, {1, 2}) == POINTS


def test_tokens_stand_where_samples_do():
    found = with_tokens(POINTS, 1024)
    assert found[0].tokens_per_s == Measured(400.0 * 1024)
    assert found[1].tokens_per_s is None
