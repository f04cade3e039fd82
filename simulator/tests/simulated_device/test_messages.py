"""Send and receive, batches of them, batches of collectives, and a pipeline."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scaling_simulator import trace
from scaling_simulator.device import configure, host_spend_us, line, link_ns, set_link, set_wire
from simulated_device import ranks

pytestmark = pytest.mark.slow
MS = 1_000_000


def late_receiver(rank, world, nbytes=1 << 20, wires=()):
    set_wire(*wires)
    configure(buffered_bytes=1 << 20)
    set_link(line(1000, 1))
    x = torch.full((nbytes,), rank + 1, dtype=torch.uint8, device="sim")
    (dist.send if rank == 0 else dist.recv)(x, 1 - rank)  # the first one makes the pair's communicator
    dist.barrier()
    with trace.recorded() as tasks:
        if rank == 0:
            dist.send(x, 1)
        else:
            host_spend_us(50_000)
            dist.recv(x, 0)
    (task,) = trace.of(tasks, "send", "recv")
    return task.wait_ns, task.transfer_ns - link_ns("send_recv", nbytes, 2), x[0].item()


WIRES = pytest.mark.parametrize("wires", [(), ("*",)], ids=["own_links", "one_wire"])


@WIRES
def test_a_sender_of_few_bytes_does_not_wait_for_a_late_receiver(wires):
    assert ranks.run(late_receiver, 2, wires=wires) == [(0, 0, 1), (0, 0, 1)]


@WIRES
def test_a_sender_of_many_bytes_does(wires):
    assert ranks.run(late_receiver, 2, nbytes=2 << 20, wires=wires) == [(50 * MS, 0, 1), (0, 0, 1)]


def late_in_a_broadcast(rank, world, nbytes, wires):
    set_wire(*wires)
    configure(buffered_bytes=1 << 20)
    set_link(line(1000, 1))
    x = torch.full((nbytes,), rank + 1, dtype=torch.uint8, device="sim")
    dist.barrier()
    if rank == 2:
        host_spend_us(50_000)
    with trace.recorded() as tasks:
        dist.broadcast(x, 0)
    (task,) = trace.of(tasks, "broadcast")
    return task.wait_ns, x[0].item()


@WIRES
def test_a_root_does_not_wait_for_a_late_receiver_of_few_bytes(wires):
    assert ranks.run(late_in_a_broadcast, 3, nbytes=1 << 10, wires=wires) == [(0, 1), (0, 1), (0, 1)]
    assert ranks.run(late_in_a_broadcast, 3, nbytes=2 << 20, wires=wires) == [
        (50 * MS, 1),
        (50 * MS, 1),
        (0, 1),
    ]


def ring(rank, world):
    set_link(line(1000, 1))
    sent, got = torch.full((1 << 18,), float(rank), device="sim"), torch.empty(1 << 18, device="sim")
    after, before = (rank + 1) % world, (rank - 1) % world
    with trace.recorded() as tasks:
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
        ):
            work.wait()
    (task,) = trace.of(tasks, "batch")
    return got[0].item(), task.transfer_ns - link_ns("send_recv", 1 << 20, 2)


def test_a_batch_of_messages_is_one_operation_both_ways_at_once():
    assert ranks.run(ring, 4) == [(3.0, 0), (0.0, 0), (1.0, 0), (2.0, 0)]


def coalesced(rank, world):
    set_link(line(1000, 1))
    tensors = [torch.full((n,), float(rank + 1), device="sim") for n in (100, 200, 300)]
    with (
        trace.recorded() as tasks,
        dist._coalescing_manager(device=torch.device("sim", rank), async_ops=True) as batch,
    ):
        for tensor in tensors:
            dist.all_reduce(tensor)
        # the manager queues the batch at its end
    batch.wait()
    torch.accelerator.synchronize()
    parts = [torch.empty(2, device="sim") for _ in range(2)]
    with dist._coalescing_manager():
        for i, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, torch.full((2 * world,), float(i + rank), device="sim"))
    return (
        [t[0].item() for t in tensors],
        [p[0].item() for p in parts],
        [(t.name, t.bytes) for t in tasks if "/" in t.name],
    )


def test_coalesced_collectives_are_one_operation():
    for sums, parts, tasks in ranks.run(coalesced, 2):
        assert sums == [3.0] * 3
        assert parts == [1.0, 3.0]
        assert tasks == [("all_reduce/default_pg", 600 * 4)]


def pipeline(rank, world):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    reference = copy.deepcopy(whole)
    part = (whole[:2] if rank == 0 else whole[2:]).to("sim")
    x, target = torch.randn(8, 16), torch.randn(8, 8)

    def loss_of(y, t):
        return (y - t).pow(2).mean()

    schedule = ScheduleGPipe(PipelineStage(part, rank, world, torch.device("sim", rank)), 4, loss_fn=loss_of)
    if rank == 0:
        schedule.step(x.to("sim"))
    else:
        schedule.step(target=target.to("sim"))
    loss_of(reference(x), target).backward()
    theirs = (reference[:2] if rank == 0 else reference[2:]).parameters()
    return max(
        float((a.grad.cpu() - b.grad).abs().max()) for a, b in zip(part.parameters(), theirs, strict=True)
    )


def test_a_pipeline_gives_the_gradients_of_the_whole_model():
    assert all(off < 1e-6 for off in ranks.run(pipeline, 2))
