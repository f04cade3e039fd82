"""A step of given operators on a device of given ceilings."""

from scaling.analysis.decompose.roofline import roofline
from scaling.analysis.results import Measured
from scaling.records.checkup import (
    CONVOLUTION,
    COPY,
    MATMUL,
    SCHEMA,
    STEP_OPS,
    TO_DEVICE_PINNED,
    Ceiling,
    Kernel,
    KernelTable,
    Operator,
    StepWork,
)


def ceilings(flop_s=1e12, memory=1e11, launches=1e6, cache=1e12, transfer=None, convolution=None):
    found = [
        Ceiling(name=MATMUL + "fp32", unit="FLOP/s", size=1024, best=flop_s, repeats=7),
        Ceiling(name=COPY, unit="bytes/s", size=2**20, best=cache, repeats=7),
        Ceiling(name=COPY, unit="bytes/s", size=2**28, best=memory, repeats=7),
        Ceiling(name=STEP_OPS, unit="1/s", size=192, best=launches, repeats=7),
    ]
    if convolution:
        found.append(Ceiling(name=CONVOLUTION + "fp32", unit="FLOP/s", size=64, best=convolution, repeats=7))
    if transfer:
        found.append(Ceiling(name=TO_DEVICE_PINNED, unit="bytes/s", size=2**26, best=transfer, repeats=7))
    return found


def of(
    *operators,
    step_ms=20.0,
    input_bytes=0,
    input_ms=None,
    recomputed_flops=0,
    device_name="",
    also_ms=(),
    kernels=None,
    **limits,
):
    work = StepWork(
        batch=8,
        precision="fp32",
        operators=operators,
        sightings=(),
        input_bytes=input_bytes,
        same_shapes=True,
        recomputed_flops=recomputed_flops,
    )
    return roofline(
        ceilings(**limits),
        work,
        Measured(step_ms),
        rank=0,
        device="cpu: test",
        device_name=device_name,
        also_ms=also_ms,
        kernels=kernels,
        input_ms=None if input_ms is None else Measured(input_ms),
    )


def kernels(step_ms, busy_ms, *, batch=8, slept_ms=0):
    """One kernel that takes `busy_ms` of a step on an accelerator."""
    one = Kernel(
        key="aten::mm|a", operator="aten::mm", calls=1.0, time_ns=int(busy_ms * 1e6), flops=0, bytes=0
    )
    return KernelTable(
        schema=SCHEMA,
        batch=batch,
        precision="fp32",
        step_ns=int(step_ms * 1e6),
        kernels=(one,),
        slept_ns=int(slept_ms * 1e6),
    )


def op(flops=0, size=0, count=1, name="mm"):
    return Operator(name=name, layer="0", count=count, flops=flops, bytes=size)
