"""`python -m scaling.worker.listing`: a Listing as JSON on standard input, a Listed on the output.

torch's fake process group stands for the ranks: its collectives return at once and move nothing, so one process runs
the program of rank 0 at any world size, and the tap sees every collective with its communicator and bytes. Values are
meaningless, so a step of the smallest batch is enough; what divided layers send goes by the samples and is scaled.
Stamps are a counter: only their order counts.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from scaling.errors import InputError
from scaling.records.codec import decode, encode
from scaling.spec.listing import Listed, ListedCollective, ListedMark, Listing
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import use_clock
from scaling.worker.data.workload import Workload, build
from scaling.worker.models.options import shaped
from scaling.worker.parallel.compression import WIRE
from scaling.worker.parallel.ddp import Wrapping, accumulating, bucket_bytes, bucket_parameters, settle
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.norms import Norms
from scaling.worker.parallel.replicated import Replicas
from scaling.worker.parallel.sharded import Shards
from scaling.worker.parallel.units import unit_of_each

SAMPLES = 2
"""Of a micro-step: BatchNorm refuses one."""


def listed(asked: Listing) -> Listed:
    """The collectives of the program's second step, and what the rank holds; the first one makes torch's state."""
    spec, mesh = asked.spec, asked.mesh
    dist.init_process_group("fake", store=_store(), rank=0, world_size=mesh.size)
    use_clock(itertools.count(1).__next__, virtual=True, sleep_s=lambda _seconds: None)
    torch.manual_seed(spec.seed)
    workload = shaped(build(spec.model.target, spec.model.args), spec)
    groups = _groups(asked)
    if not spec.parallel.sharded:
        return _replicated(asked, workload, groups)
    shards = Shards(spec, workload, groups=groups, world_size=mesh.size, device=Cpu(), host=asked.host)
    made = shards.apply("listing", alone=False, sync=False)
    detail = made.detail(detailed=True)
    with detail.taking() as take:
        for _ in range(2):
            _step(made, workload, spec.accumulation_steps)
            rows = take(0).collectives or []
    rows = [row for row in rows if row.unit >= 0]
    axes = {key: axis for axis, key in mesh.keys().items()}
    sizes = {key: len(group.ranks) for key, group in groups.items()}
    made_by_torch = mesh.made_by_torch(0, spec.fsdp)
    found = [
        ListedCollective(
            kind=KINDS[row.kind],
            phase=PHASES[row.phase],
            unit=row.unit,
            axis=axes.get(row.group, "shard"),
            ranks=len(made_by_torch[row.group]) if row.group in made_by_torch else sizes[row.group],
            bytes=row.bytes * (asked.samples if axes.get(row.group) == "tensor" else SAMPLES) // SAMPLES,
        )
        for row in rows
    ]
    marks: list[tuple[float, int, ListedMark]] = []
    for k, row in enumerate(rows):
        marks.append((row.launch_ns, 0, ListedMark(waits=False, collective=k)))
        at = row.wait_ns or (
            row.launch_ns if asked.host else 0
        )  # on the host's back end the call itself waits
        if at:
            marks.append((at, 1, ListedMark(waits=True, collective=k)))
    return Listed(
        collectives=tuple(found),
        marks=tuple(mark for *_, mark in sorted(marks, key=lambda item: item[:2])),
        memory=_memory(shards, made),
    )


def _store() -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    return FakeStore()


def _replicated(asked: Listing, workload: Workload, groups: Mapping[int, Group]) -> Listed:
    """DDP's buckets, as it settles them. Each is launched when the unit is reduced that completes it.

    Units are numbered as those of fully_shard: the root comes first, where it has parameters of its own.
    """
    spec, n = asked.spec, asked.mesh.size
    optimizer = workload.optimizer(workload.module.parameters())
    wrapping = Wrapping(workload.module, spec.ddp, alone=groups[1].data, compiles=False)
    if spec.ddp.comm_hook not in ("none", *WIRE):
        raise InputError(
            f"ddp.comm_hook={spec.ddp.comm_hook}: what it sends is not listed; predict without it"
        )
    if Norms(workload.module):
        raise InputError("model: what SyncBatchNorm sends is not listed, so no other mesh can be predicted")
    ddp = wrapping.over(groups[n].data, "listing", hooked=False, sync=False)
    ddp.register_comm_hook(None, lambda _state, bucket: _kept(bucket))
    made = SimpleNamespace(module=ddp, optimizer=optimizer, accumulate=accumulating(ddp))
    for _ in range(2):
        _step(made, workload, spec.accumulation_steps)
        settle(ddp)
    units = unit_of_each(workload, spec.fsdp.units)
    width = wrapping.wire_dtype.itemsize / torch.float32.itemsize
    found = [
        ListedCollective(
            kind="all_reduce",
            phase="backward",
            unit=min(units[index] for index in members),
            axis="replicate",
            ranks=n,
            bytes=round(size * width),
        )
        for members, size in zip(bucket_parameters(ddp), bucket_bytes(ddp), strict=True)
    ]
    launches = [ListedMark(waits=False, collective=k) for k in range(len(found))]
    waits = [ListedMark(waits=True, collective=k) for k in reversed(range(len(found)))]
    _stepped(ddp, optimizer)
    replicas = Replicas(spec, workload.module, optimizer, group=groups[n], solo=groups[1], device=Cpu())
    return Listed(collectives=tuple(found), marks=(*launches, *waits), memory=replicas.computed(optimizer))


def _kept(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that sends nothing: the fake group's work has no result that DDP could take."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _groups(asked: Listing) -> dict[int, Group]:
    """Rank 0's communicators, by their key in the records."""
    mesh = asked.mesh
    keys, axes = mesh.keys(), mesh.axes()
    ranks = {mesh.size: tuple(range(mesh.size)), 1: (0,)}
    ranks |= {keys[axis]: next(group for group in axes[axis] if 0 in group) for axis in axes}
    return {
        key: Group(key=key, ranks=members, control=None, data=dist.new_group(list(members), backend="fake"))
        for key, members in ranks.items()
    }


def _step(made: Any, workload: Workload, micro_steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for micro in range(micro_steps):
        with made.accumulate(micro == micro_steps - 1):
            inputs, targets = workload.make_batch(SAMPLES, generator)
            workload.loss(made.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    made.optimizer.zero_grad(set_to_none=True)


def _memory(shards: Shards, made: Any) -> dict[str, int]:
    """By arithmetic, with the optimizer's states as those of the sharded parameters once it has stepped."""
    _stepped(made.module, made.optimizer)
    nothing: Any = SimpleNamespace(state={})
    held: dict[str, int] = made.bytes()
    return shards.computed(nothing) | held


def _stepped(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step with gradients of 0: the optimizer then has its states."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def main() -> None:
    """List and print. A program that fails is an answer."""
    asked = decode(Listing, json.load(sys.stdin))
    answer = os.fdopen(os.dup(1), "w")  # what the model and its libraries print is not part of the answer
    os.dup2(2, 1)
    try:
        found = listed(asked)
    except Exception as error:  # noqa: BLE001  # whatever the program raises
        found = Listed(failed=f"{type(error).__name__}: {error}".splitlines()[0])
    json.dump(encode(found), answer)
    answer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
