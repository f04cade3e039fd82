"""Parts of a step from kernels of known times; and of the records of two ranks that share an H100."""

import pytest
from golden.cases import SHARED

from scaling.analysis.decompose import kernels as parts
from scaling.analysis.results import Measured
from scaling.analysis.run import derive
from scaling.records.checkup import SCHEMA, Kernel, KernelTable
from scaling.records.paths import RunFolder

RECORDS = SHARED / "nccl_one_h100"
MS = 1_000_000
COPY_S, PEAK_S = 1e12, 100e12


def least(kernel):
    computes, moves = kernel.flops / PEAK_S, kernel.bytes / COPY_S
    return (computes, "compute") if computes > moves else (moves, "memory")


def kernel(name, ms, *, calls=1.0, flops=0, size=0, shapes="Float 64,64"):
    key = f"aten::{name}|{shapes}"
    took = int(ms * MS)
    return Kernel(
        key=key, operator=f"aten::{name}", calls=calls, time_ns=took, flops=flops, bytes=size, layer="l"
    )


FULL = kernel("mm", 2.0, flops=160 * 10**9)
"""At 80 % of the peak."""
SLOW = kernel("mm", 3.0, flops=100 * 10**9)
NORM = kernel("native_batch_norm", 4.0, size=10**9)
CHAIN = kernel("mul", 1.0, calls=3, size=5 * 10**8)
TINY = kernel("add", 0.01, calls=100, size=8)


def table(*kernels, step_ms, queued_ms=0.0, precision="fp32"):
    step, queued = int(step_ms * MS), int(queued_ms * MS)
    return KernelTable(
        schema=SCHEMA, batch=8, precision=precision, step_ns=step, kernels=kernels, queued_ns=queued
    )


def spent(found):
    return {part.name: part.ms.value for part in found.parts}


def whole(found):
    return sum(spent(found).values()) + found.unexplained_ms.value


def test_a_step_is_its_kernels_by_what_limits_them_and_what_the_device_waits_for_its_host():
    asked = table(FULL, SLOW, NORM, CHAIN, TINY, step_ms=20, queued_ms=13)
    found = parts.step_time(asked, least, Measured(20.0, 19.5, 20.5, 5))
    assert spent(found) == pytest.approx(
        {"idle": 7, "memory": 4, "compute": 3, "elementwise": 3, "at_ceiling": 2, "small": 1}
    )
    assert found.unexplained_ms.value == 0
    assert [k.operator for k in found.slowest] == ["native_batch_norm", "mm", "mul", "add", "mm"]
    assert found.notes[-1] == "the parts sum to 100% of the step within its interval"
    assert parts.sentence(found, Measured(20.0)).startswith("of 20 ms: 35% no kernel runs, 20% other kernels")


def test_kernels_that_sum_to_more_than_the_step_say_so_and_are_scaled_to_it():
    found = parts.step_time(table(FULL, NORM, step_ms=3), least, Measured(3.0))
    assert sum(spent(found).values()) == pytest.approx(3)
    assert found.notes[0].startswith(
        "kernels timed alone sum to 200% of the step that they are of (6 of 3 ms)"
    )
    assert "what the device waited for its host is not known" in found.notes[0]


def test_what_the_device_takes_for_all_kernels_in_a_row_limits_them():
    found = parts.step_time(table(FULL, NORM, step_ms=8, queued_ms=4), least, Measured(8.0))
    assert spent(found)["idle"] == 4
    assert found.notes[0] == (
        "kernels timed alone sum to 6 ms, and all of them in a row take 4 ms, to which they are scaled"
    )


def test_the_events_around_each_kernel_go_first_so_small_ones_do_not_cost_the_large():
    """A hundred launches of 10 us and one kernel of 4 ms, which take 4 ms together."""
    found = parts.step_time(table(NORM, TINY, step_ms=4, queued_ms=4), least, Measured(4.0))
    assert spent(found)["memory"] == pytest.approx(4.0, rel=0.02)
    assert found.slowest[0].ms.value <= 4.0


def test_other_ranks_the_batch_and_collectives_are_parts_and_the_rest_is_said():
    asked = table(FULL, NORM, step_ms=7, queued_ms=6)
    found = parts.step_time(
        asked, least, Measured(20.0, 19.0, 21.0, 5), alone_ms=12.0, input_ms=2.0, waits_ms=3.0
    )
    assert spent(found) == pytest.approx(
        {"at_ceiling": 2, "memory": 4, "idle": 1, "input": 2, "communication": 3, "other_ranks": 5}
    )
    assert found.unexplained_ms == Measured(3.0, 2.0, 4.0, 5)
    assert "3 ms (15% of the step) are not explained" in found.notes[-1]


@pytest.mark.parametrize("step", [1.0, 5.0, 8.0, 30.0])
@pytest.mark.parametrize("alone", [None, 0.5, 6.0, 50.0])
@pytest.mark.parametrize("queued", [0.0, 2.0, 9.0])
def test_parts_never_sum_to_more_than_the_step(step, alone, queued):
    asked = table(FULL, SLOW, CHAIN, step_ms=6, queued_ms=queued)
    found = parts.step_time(asked, least, Measured(step), alone_ms=alone, input_ms=4.0, waits_ms=2.0)
    assert whole(found) == pytest.approx(step)
    assert found.unexplained_ms.value >= 0
    assert all(part.ms.value > 0 for part in found.parts)


def test_a_matrix_side_that_matrix_units_cannot_load_is_named_where_there_are_such_units():
    odd = kernel("mm", 3.0, flops=10**11, shapes="BFloat16 4096,768;BFloat16 768,50257")
    for precision, on_host, part in (
        ("bf16", False, "odd_sides"),
        ("fp32", False, "compute"),
        ("bf16", True, "compute"),
    ):
        asked = table(odd, step_ms=3, precision=precision)
        assert parts.step_time(asked, least, Measured(3.0), on_host=on_host).parts[0].name == part
    even = kernel("mm", 3.0, flops=10**11, shapes="BFloat16 4096,768;BFloat16 768,50264")
    assert (
        parts.step_time(table(even, step_ms=3, precision="bf16"), least, Measured(3.0)).parts[0].name
        == "compute"
    )


def test_on_a_cpu_what_is_between_operators_is_python():
    found = parts.step_time(table(FULL, step_ms=5), least, Measured(5.0), on_host=True)
    assert [p.means.partition(":")[0] for p in found.parts] == [
        "between operators",
        "kernels at their ceiling",
    ]


@pytest.mark.skipif(
    not RECORDS.exists(), reason="the records of two ranks of one H100 are not beside the checkout"
)
@pytest.mark.parametrize(
    ("run", "over", "step", "named"), [("resnet", "115%", 28.0, 0.75), ("vary", "134%", 67.3, 0.9)]
)
def test_an_h100_that_two_ranks_share_says_where_its_step_goes(run, over, step, named):
    rebuilt, _, *_ = derive(RunFolder(RECORDS / run))
    line = rebuilt.analysis.roofline
    where = line.where
    assert line.step_ms.value == pytest.approx(step, rel=0.002)
    assert where.notes[0].startswith(f"kernels timed alone sum to {over} of the step that they are of")
    assert whole(where) == pytest.approx(line.step_ms.value)
    assert named <= sum(spent(where).values()) / line.step_ms.value <= 1 + 1e-9
    assert "other ranks slow it" in line.said
    assert "no ceiling explains" not in line.said
    worst = where.slowest[0]
    assert (worst.operator, worst.part) == {
        "resnet": ("native_batch_norm", "memory"),
        "vary": ("mm", "odd_sides"),
    }[run]
    missing = [note for note in where.notes if "not explained" in note]
    assert bool(missing) == (run == "resnet")
