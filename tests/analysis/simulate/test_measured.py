"""What a run gives for a simulation: kernels that add up to its step."""

from __future__ import annotations

import pytest

from scaling.analysis.simulate import measured
from scaling.errors import InputError
from scaling.records.checkup import COPY, SCHEMA, Ceiling, Kernel, KernelTable, Roofline, StepWork
from scaling.spec.simulation import Chip

CHIP = Chip(name="here", flop_s=1e9, flop_s_fp32=1e9, memory_bytes_s=1e9, kernel_us=0.0)


def table(step_ns, *kernels, slept_ns=0):
    return KernelTable(
        schema=SCHEMA, batch=8, precision="fp32", step_ns=step_ns, kernels=kernels, slept_ns=slept_ns
    )


def kernel(key, time_ns, calls=1.0, flops=0, size=0):
    return Kernel(key=key, operator=key.split("|")[0], calls=calls, time_ns=time_ns, flops=flops, bytes=size)


def test_on_a_cpu_operators_share_what_the_step_takes_beyond_them():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2), kernel("aten::add|b", 100_000))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] + times.us["aten::add|b"] == pytest.approx(1000)
    assert "90.0%" in said[0]


def test_on_a_device_the_rest_is_the_hosts():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2))
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.us["aten::mm|a"] == pytest.approx(400)


def test_operators_that_take_longer_than_their_step_are_scaled_to_it_and_that_is_said():
    given = table(1_000_000, kernel("aten::mm|a", 600_000, calls=2))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] == pytest.approx(1000)
    assert "assumption" in said[0]


def test_other_shapes_take_their_operators_share_of_what_the_device_can_do():
    given = table(
        2_000_000, kernel("aten::mm|a", 2_000_000, flops=1_000_000)
    )  # 1 ms at 1 GFLOP/s: a factor of 2
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.factors == {"aten::mm": pytest.approx(2.0), "*": pytest.approx(2.0)}


def test_on_a_cpu_kernels_are_scaled_to_a_step_alone_over_the_whole_run():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2), kernel("aten::add|b", 100_000))
    times, said = measured._times(given, CHIP, on_cpu=True, alone_ns=1_200_000)
    assert 2 * times.us["aten::mm|a"] + times.us["aten::add|b"] == pytest.approx(1200)
    assert "scaled by 1.200" in said[1]


def test_what_a_synthetic_model_sleeps_is_in_no_kernel():
    """The simulated model sleeps as long as the measured one."""
    given = table(1_000_000, kernel("aten::mm|a", 100_000), slept_ns=800_000)
    alone, said = measured._times(given, CHIP, on_cpu=True)
    assert alone.us == {"aten::mm|a": pytest.approx(200)}
    assert "which sleeps 0.8 ms besides" in said[0]
    whole, _ = measured._times(given, CHIP, on_cpu=True, alone_ns=900_000)
    assert whole.us == {"aten::mm|a": pytest.approx(100)}


def roofline(*ceilings):
    work = StepWork(batch=8, precision="fp32", operators=(), sightings=(), input_bytes=0, same_shapes=True)
    return Roofline(schema=SCHEMA, rank=0, ceilings=ceilings, work=work)


def test_the_device_is_what_its_ceilings_say():
    found = [
        Ceiling(name=name, unit="1/s", size=1, best=best, repeats=1)
        for name, best in (("matmul_fp32", 5e10), (COPY, 8e9))
    ]
    chip = measured._measured_chip(roofline(*found), table(1000), elsewhere=True)
    assert (chip.flop_s, chip.memory_bytes_s) == (5e10, 8e9)


def test_without_ceilings_it_is_the_best_that_kernels_reached_and_stands_for_itself_alone():
    given = table(1000, kernel("aten::add|a", 100, size=400), kernel("aten::add|b", 100, size=800))
    assert measured._measured_chip(roofline(), given, elsewhere=False).memory_bytes_s == 8e9
    with pytest.raises(InputError, match="cannot be scaled to another"):
        measured._measured_chip(roofline(), given, elsewhere=True)
