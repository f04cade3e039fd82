"""The loops of benchmarks/loops.py: each trains a small model, and one of its ranks may sleep in a phase."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, NAP_MS, WIDTH, BATCH = 85, 20.0, 64, 8


class Net(nn.Module):
    """A small model; rank 1 may sleep in its forward, and where its backward begins."""

    def __init__(self, nap: Callable[[str], None], *, norm: bool = False) -> None:
        super().__init__()
        self.nap = nap
        norms = [nn.BatchNorm1d(WIDTH)] if norm else []
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), *norms, nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.nap("forward")
        output: torch.Tensor = self.inner(rows)
        if output.requires_grad:
            output.register_hook(lambda _gradient: self.nap("backward"))
        return output


class Sgd(torch.optim.SGD):
    """SGD whose step may sleep."""

    nap: Callable[[str], None]

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.nap("optimizer")
        return loss


class Job:
    """One training: where it sleeps, its batches and its losses."""

    def __init__(self, late: str) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.late, self.losses = late if self.rank == 1 else "", []
        self.slept_ns = 0
        self.generator = torch.Generator().manual_seed(self.rank)
        torch.manual_seed(0)

    def nap(self, phase: str) -> None:
        if phase == self.late:
            begin = time.perf_counter_ns()
            time.sleep(NAP_MS / 1e3)
            self.slept_ns += time.perf_counter_ns() - begin

    def net(self, **named: Any) -> Net:
        return Net(self.nap, **named)

    def fetch(self, rows: int = BATCH) -> torch.Tensor:
        self.nap("input")
        return torch.randn(rows, WIDTH, generator=self.generator)

    def sgd(self, model: nn.Module) -> Sgd:
        optimizer = Sgd(model.parameters(), lr=0.01)
        optimizer.nap = self.nap
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())
        loss.backward()


Step = Callable[[], None]
Loop = Callable[[Job], tuple[Any, Step]]
"""Given a job, returns what a Probe is given (None: it looks for itself) and one training step."""


def usual(job: Job, model: Any, between: Callable[[torch.Tensor], None] = lambda _loss: None) -> Step:
    """Fetch, forward, backward, step. `between`: what the loop does between forward and backward."""
    optimizer = job.sgd(model)

    def step() -> None:
        loss = model(job.fetch()).square().mean()
        between(loss)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def wrapped(job: Job, net: nn.Module | None = None, **named: Any) -> tuple[Any, Step]:
    ddp = DistributedDataParallel(net or job.net(), **named)
    return ddp, usual(job, ddp)


def accumulation(job: Job) -> tuple[Any, Step]:
    ddp = DistributedDataParallel(job.net())
    optimizer = job.sgd(ddp)

    def step() -> None:
        for micro in range(4):
            with ddp.no_sync() if micro < 3 else contextlib.nullcontext():
                job.backward(ddp(job.fetch()).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    return ddp, step


def fsdp1(job: Job) -> tuple[Any, Step]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(job.net(), device_id=torch.device("cpu"))
    return model, usual(job, model)


def fsdp2(job: Job, shape: tuple[int, ...] = ()) -> tuple[Any, Step]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = job.net()
    mesh = init_device_mesh(
        "cpu", shape or (job.world,), mesh_dim_names=("replicate", "shard")[-len(shape or (1,)) :]
    )
    for layer in (net.inner[0], net.inner[-1]):
        fully_shard(layer, mesh=mesh)
    model = fully_shard(net, mesh=mesh)
    return model, usual(job, model)


def replicated(job: Job) -> tuple[Any, Step]:
    from torch.distributed._composable.replicate import replicate

    model = replicate(job.net())
    return model, usual(job, model)


def tensor_parallel(job: Job) -> tuple[Any, Step]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = job.net()
    job.generator.manual_seed(0)  # all ranks have the same samples
    plan: Any = {"inner.0": ColwiseParallel(), "inner.2": RowwiseParallel()}
    parallelize_module(net, init_device_mesh("cpu", (job.world,)), plan)
    return net, usual(job, net)


def _reduced(job: Job, model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= job.world


def by_hand(job: Job) -> tuple[Any, Step]:
    return None, _step_by_hand(job, job.net())


def _step_by_hand(job: Job, net: Any) -> Step:
    """A step after which the loop itself reduces the gradients."""
    optimizer = job.sgd(net)

    def step() -> None:
        job.backward(net(job.fetch()).square().mean())
        _reduced(job, net)
        optimizer.step()
        optimizer.zero_grad()

    return step


def waited_later(job: Job) -> tuple[Any, Step]:
    net, works = job.net(), []
    optimizer = job.sgd(net)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )

    def step() -> None:
        job.backward(net(job.fetch()).square().mean())
        while works:
            works.pop().wait()
        optimizer.step()
        optimizer.zero_grad()

    return net, step


class Exchanged(torch.autograd.Function):
    """Rows to the ranks of their experts, and back in backward."""

    @staticmethod
    def forward(_ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        routed = torch.empty_like(rows)
        dist.all_to_all_single(routed, rows.contiguous())
        return routed

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        routed = torch.empty_like(gradients[0])
        dist.all_to_all_single(routed, gradients[0].contiguous())
        return routed


class Expert(Net):
    """A model whose rows visit the experts of all ranks."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(Exchanged.apply(rows + self.inner[0].bias))  # type: ignore[no-untyped-call]


def all_to_all(job: Job) -> tuple[Any, Step]:
    net = Expert(job.nap)
    return net, _step_by_hand(job, net)


def messages(job: Job) -> tuple[Any, Step]:
    """Two stages that send each other two microbatches."""
    net = job.net()
    optimizer, first = job.sgd(net), job.rank == 0

    def step() -> None:
        batch, outputs, sent = job.fetch(2 * BATCH).chunk(2), [], []
        for rows in batch:
            if first:
                outputs.append(net(rows))
                dist.send(outputs[-1].detach(), 1)
            else:
                received = torch.empty_like(rows)
                dist.recv(received, 0)
                received.requires_grad_()
                job.backward(net(received).square().mean())
                sent.append(dist.isend(received.grad, 0))
        for output in outputs:
            gradient = torch.empty_like(output)
            dist.recv(gradient, 1)
            job.losses.append(gradient.sum().item())
            output.backward(gradient)
        for work in sent:
            work.wait()
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def schedule(job: Job) -> tuple[Any, Step]:
    """The same by torch.distributed.pipelining."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    net = job.net()
    stage = PipelineStage(net, job.rank, job.world, torch.device("cpu"))
    pipeline = Schedule1F1B(stage, 2, loss_fn=lambda output, _target: output.square().mean())
    optimizer = job.sgd(net)

    def step() -> None:
        batch, losses = job.fetch(2 * BATCH), []
        pipeline.step(
            *((batch,) if job.rank == 0 else ()),
            **({} if job.rank == 0 else {"target": batch, "losses": losses}),
        )
        job.losses += [loss.item() for loss in losses]
        optimizer.step()
        optimizer.zero_grad()

    return pipeline, step


def broadcast_first(job: Job) -> tuple[Any, Step]:
    ddp, step = wrapped(job)

    def whole() -> None:
        dist.broadcast(torch.zeros(1), src=0)
        step()

    return ddp, whole


def count_gathered(job: Job) -> tuple[Any, Step]:
    ddp, step = wrapped(job)

    def whole() -> None:
        dist.all_gather_object([None] * job.world, BATCH)
        step()

    return ddp, whole


def loss_reduced(job: Job) -> tuple[Any, Step]:
    ddp = DistributedDataParallel(job.net())
    return ddp, usual(job, ddp, lambda loss: dist.all_reduce(loss.detach().clone()))


def two_models(job: Job) -> tuple[Any, Step]:
    makes, judges = DistributedDataParallel(job.net()), DistributedDataParallel(nn.Linear(WIDTH, 1))
    beside = torch.optim.SGD(judges.parameters(), lr=0.01)
    optimizer = job.sgd(makes)

    def step() -> None:
        noise = job.fetch()
        job.backward(judges(noise).square().mean())
        beside.step()
        beside.zero_grad()
        job.backward(judges.module(makes(noise)).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    return None, step


def local_sgd(job: Job) -> tuple[Any, Step]:
    net = job.net()
    step, count = usual(job, net), 0

    def whole() -> None:
        nonlocal count
        step()
        count += 1
        for parameter in net.parameters() if count % 4 == 0 else ():
            dist.all_reduce(parameter.data)
            parameter.data /= job.world

    return net, whole


def grad_scaler(job: Job) -> tuple[Any, Step]:
    ddp, scaler = DistributedDataParallel(job.net()), torch.amp.GradScaler("cpu")
    optimizer = job.sgd(ddp)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = ddp(job.fetch()).float().square().mean()
        job.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return ddp, step


def closure(job: Job) -> tuple[Any, Step]:
    ddp = DistributedDataParallel(job.net())
    optimizer = job.sgd(ddp)

    def step() -> None:
        rows = job.fetch()

        def loss_of() -> torch.Tensor:
            optimizer.zero_grad()
            loss = ddp(rows).square().mean()
            job.backward(loss)
            return loss

        optimizer.step(loss_of)

    return ddp, step


def averaged(job: Job) -> tuple[Any, Step]:
    ddp, step = wrapped(job)
    mean = torch.optim.swa_utils.AveragedModel(ddp.module)

    def whole() -> None:
        step()
        mean.update_parameters(ddp.module)

    return ddp, whole


def workers(job: Job) -> tuple[Any, Step]:
    rows = torch.utils.data.TensorDataset(torch.randn(STEPS * BATCH, WIDTH, generator=job.generator))
    batches = iter(torch.utils.data.DataLoader(rows, BATCH, num_workers=1))

    def fetch() -> torch.Tensor:
        job.nap("input")
        batch: torch.Tensor = next(batches)[0]
        return batch

    job.fetch = fetch  # type: ignore[method-assign,assignment]
    return wrapped(job)


def checkpointed(job: Job) -> tuple[Any, Step]:
    from torch.utils.checkpoint import checkpoint

    net = job.net()
    net.inner.forward = functools.partial(checkpoint, net.inner.forward, use_reentrant=False)
    return wrapped(job, net)


def compiled(job: Job) -> tuple[Any, Step]:
    net = job.net()
    net.inner = torch.compile(net.inner, backend="aot_eager")
    return wrapped(job, net)


def half_hook(job: Job) -> tuple[Any, Step]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp = DistributedDataParallel(job.net())
    ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp, usual(job, ddp)


class Kind(NamedTuple):
    """A loop, and what it takes to judge its report."""

    loop: Loop
    ranks: int = 2
    evaluates: bool = False


KINDS = {
    "ddp": Kind(wrapped),
    "static graph": Kind(functools.partial(wrapped, static_graph=True)),
    "unused parameters": Kind(functools.partial(wrapped, find_unused_parameters=True)),
    "buffers": Kind(lambda job: wrapped(job, job.net(norm=True))),
    "hook": Kind(half_hook),
    "accumulation": Kind(accumulation),
    "checkpoint": Kind(checkpointed),
    "compile": Kind(compiled),
    "GradScaler": Kind(grad_scaler),
    "closure": Kind(closure),
    "EMA": Kind(averaged),
    "evaluation": Kind(wrapped, evaluates=True),
    "workers": Kind(workers),
    "broadcast first": Kind(broadcast_first),
    "count gathered": Kind(count_gathered),
    "loss reduced": Kind(loss_reduced),
    "two models": Kind(two_models),
    "replicate": Kind(replicated),
    "FSDP1": Kind(fsdp1),
    "FSDP2": Kind(fsdp2),
    "HSDP": Kind(functools.partial(fsdp2, shape=(2, 2)), ranks=4),
    "tensor parallel": Kind(tensor_parallel),
    "by hand": Kind(by_hand),
    "waited later": Kind(waited_later),
    "all to all": Kind(all_to_all),
    "messages": Kind(messages),
    "schedule": Kind(schedule),
    "local SGD": Kind(local_sgd),
    "alone": Kind(lambda job: (net := job.net(), usual(job, net)), ranks=1),
}
