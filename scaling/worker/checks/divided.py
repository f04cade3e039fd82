"""Time a rank's part of a step whose layers are divided, in one process: its peers are there in name only.

torch's `fake` back end answers every collective at once with what is in memory. So the step computes what a rank
computes, and sends nothing; what it would send is counted.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.spec.promise import DividedStep
from scaling.spec.run import KINDS, Spec
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.checks.alone import step_alone, timed_s
from scaling.worker.data.workload import Workload
from scaling.worker.parallel.tap import Tap
from scaling.worker.parallel.tensor import divide

ALL_REDUCE = KINDS.index("all_reduce")


def time_divided(
    spec: Spec, workload: Workload, device: Accelerator, batch: int, whole_s: float
) -> tuple[DividedStep, ...]:
    """A rank's part at each tensor degree of the spec. `whole_s`: a step of `batch` samples on one rank, s.

    InputError for a layer that cannot be divided.
    """
    found = []
    for degree in spec.tensor_degrees:
        with _alone_of(degree, device) as mesh:
            found.append(_timed(spec, workload, device, mesh, batch, whole_s))
    return tuple(found)


@contextlib.contextmanager
def _alone_of(ranks: int, device: Accelerator) -> Iterator[DeviceMesh]:
    """A mesh of so many ranks, of which this process is the first and the others are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh(device.type, (ranks,), mesh_dim_names=("tensor",))
    finally:
        dist.destroy_process_group()


def _timed(
    spec: Spec, workload: Workload, device: Accelerator, mesh: DeviceMesh, batch: int, whole_s: float
) -> DividedStep:
    module = copy.deepcopy(workload.module)
    divided = divide(workload, module, mesh, sequence=spec.parallel.sequence)
    alone = torch.optim.SGD(module.parameters(), lr=0.0)  # what an optimizer takes is small beside a step
    step = step_alone(
        spec,
        workload,
        module,
        alone,
        batch,
        device=device,
        precision=spec.precision,
        accumulate=lambda _last: loss_parallel() if divided.loss else contextlib.nullcontext(),
    )
    tap = Tap(device.clock)
    with tap.on():
        timed_s(step, device)
    sent, ranks = tap.take(), mesh.size()
    moved = sum(one.bytes * (2 if one.kind == ALL_REDUCE else 1) for one in sent) * (ranks - 1) / ranks
    return DividedStep(
        tensor=ranks,
        share=min(timed_s(step, device) for _ in range(2)) / whole_s,
        bytes_a_sample=moved / batch,
        calls=len(sent),
    )
