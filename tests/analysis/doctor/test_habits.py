"""Named checks on a model and its loop, from what one counted step showed."""

import pytest

from scaling.analysis.results.doctor import ERROR
from scaling.records.checkup import (
    CONVOLUTION,
    COPY,
    MATMUL,
    STEP_OPS,
    Ceiling,
    Operator,
    Sighting,
    StepTimes,
    StepWork,
)

CEILINGS = (
    Ceiling(name=MATMUL + "fp32", unit="FLOP/s", size=1024, best=1e12, repeats=7),
    Ceiling(name=COPY, unit="bytes/s", size=2**20, best=1e12, repeats=7),
    Ceiling(name=COPY, unit="bytes/s", size=2**28, best=1e11, repeats=7),
    Ceiling(name=STEP_OPS, unit="1/s", size=192, best=1e6, repeats=7),
)


def work(*sightings, operators=(), **changes):
    values = {
        "batch": 32,
        "precision": "fp32",
        "operators": operators
        or (Operator(name="convolution", layer="0", count=1, flops=10**10, bytes=10**6),),
        "sightings": tuple(
            Sighting(what=what, where="train.py:7", layer="head", count=1) for what in sightings
        ),
        "input_bytes": 10**6,
        "same_shapes": True,
    }
    return StepWork(**{**values, **changes})


def times(step_ms=12, double_ms=24):
    return StepTimes(
        step_ns=(int(step_ms * 1e6),) * 8,
        input_ns=(1000,) * 8,
        double_batch_step_ns=(int(double_ms * 1e6),) * 8,
    )


def problems(node, **changes):
    node.change(1, **{"work": work(), "times": times(), "ceilings": CEILINGS, **changes})
    return node.examine().problems


def test_a_healthy_step(node):
    assert problems(node) == ()


@pytest.mark.parametrize(
    ("what", "said", "remedy"),
    [
        ("float64", "float64 in the step", ".float()"),
        ("host_sync", "read back to the host", "every hundred steps"),
        ("print", "printing", "rank 0"),
        ("to_host", "copied to the host", "keep it on the device"),
        ("pageable_copy", "pageable", "pin_memory=True"),
        ("blocking_copy", "blocks", "non_blocking=True"),
        ("mixed_devices", "several devices", "register_buffer"),
    ],
)
def test_each_habit_is_named_with_its_place_and_a_remedy(node, what, said, remedy):
    (problem,) = problems(node, work=work(what))
    assert said in problem.what
    assert "1 times at train.py:7 in head" in problem.what
    assert remedy in problem.remedy
    assert problem.rank == 1


def test_an_input_left_on_the_cpu_fails_the_step_and_is_named(node):
    text = "RuntimeError: Expected all tensors to be on the same device (parameters on cuda:0)"
    (problem,) = problems(node, model_error=text)
    assert "inputs and parameters are on different devices" in problem.what
    assert problem.severity == ERROR


def rates(product, convolution):
    return tuple(
        Ceiling(name=kind + "fp32", unit="FLOP/s", size=64, best=best, repeats=7)
        for kind, best in ((MATMUL, product), (CONVOLUTION, convolution))
    )


def test_a_blas_that_is_slow_beside_the_convolutions(node):
    (problem,) = problems(node, ceilings=(*CEILINGS[1:], *rates(1e11, 2e11)))
    assert problem.what == (
        "matrix products reach 50% of the convolutions' rate on rank 1: the BLAS is slow on this processor"
    )
    assert "another BLAS" in problem.remedy
    assert not problems(node, ceilings=(*CEILINGS[1:], *rates(1e11, 1.2e11)))


def test_a_batch_that_is_too_small(node):
    (problem,) = problems(node, times=times(step_ms=12, double_ms=14))
    assert "batch too small: 1.71 times" in problem.what
    assert problem.remedy.startswith("batch_per_rank=64")


def test_cudnn_benchmark_off_with_fixed_shapes(node):
    (problem, *_) = [p for p in problems(node, facts={"flags.cudnn_benchmark": False}) if "is off" in p.what]
    assert problem.remedy == "torch.backends.cudnn.benchmark = True"


def test_shapes_that_change_are_no_case_for_it(node):
    found = problems(node, facts={"flags.cudnn_benchmark": False}, work=work(same_shapes=False))
    assert not any("is off" in p.what for p in found)


def test_tiny_kernels(node):
    tiny = tuple(Operator(name="add", layer=str(i), count=1, flops=1, bytes=8) for i in range(4000))
    (problem,) = problems(node, work=work(operators=tiny), times=times(step_ms=6, double_ms=12))
    assert "tiny kernels: launching 4000 operators takes at least 4 of the 6 ms" in problem.what
