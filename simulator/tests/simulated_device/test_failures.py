"""What breaks: a peer that dies or never comes, a device that is lost, memory that ends; and how a process ends."""

import itertools
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scaling_simulator.device import configure, host_ms, line, load, lose_device, set_cost, set_link, sleep_us
from simulated_device import ranks

pytestmark = pytest.mark.slow


def dead_peer(rank, world):
    x = torch.ones(4, device="sim")
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if rank == 1:
        os._exit(9)
    began, simulated = time.monotonic(), host_ms()
    dist.all_reduce(x)
    launched = host_ms() - simulated
    with pytest.raises(dist.DistBackendError) as failed:
        torch.accelerator.synchronize()
    took = host_ms() - simulated
    with pytest.raises(dist.DistBackendError):  # it stays
        x.sum().item()
    load().clear_error()
    return launched, took, time.monotonic() - began, str(failed.value)


def test_a_peer_that_dies_is_an_asynchronous_error_after_the_timeout():
    (launched, took_ms, waited_s, message), ended = ranks.run(dead_peer, 2)
    assert ended == "ended with 9"
    assert launched == 0
    assert took_ms >= 600_000  # the default timeout on the virtual clock, which nobody waits for
    assert waited_s < 60
    assert message.startswith("simccl error: all_reduce/default_pg: rank 1 is gone")


def absent_peer(rank, world):
    group = dist.new_group(list(range(world)), timeout=timedelta(seconds=1))
    x = torch.ones(4, device="sim")
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    if rank == 1:
        time.sleep(4)
        return None
    dist.all_reduce(x, group=group)
    with pytest.raises(dist.DistBackendError, match="did not come within the timeout"):
        torch.accelerator.synchronize()
    load().clear_error()
    return x.numel()


def test_a_peer_that_never_comes_is_one_too():
    assert ranks.run(absent_peer, 2) == [4, None]


def lost_device(rank, world):
    set_cost(10_000, "aten::mm")
    group = dist.new_group(list(range(world)), timeout=timedelta(seconds=1))
    x = torch.ones(8, 8, device="sim")
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    if rank == 1:
        lose_device(1, after_us=25_000)
        for _ in range(5):
            torch.mm(x, x)
    dist.all_reduce(x, group=group)
    try:
        torch.accelerator.synchronize()
    except RuntimeError as error:
        load().clear_error()
        return type(error).__name__, str(error)
    return None


def test_a_lost_device_raises_torchs_error_and_its_peers_time_out():
    (peer, _), (kind, message) = ranks.run(lost_device, 2)
    assert (kind, peer) == ("AcceleratorError", "DistBackendError")
    assert "device 1 was lost" in message


def out_of_memory_on_one(rank, world):
    configure(capacity_bytes=(1 << 20) << rank)
    try:
        torch.empty(1 << 20, device="sim")
    except torch.OutOfMemoryError:
        return "out of memory", torch.accelerator.memory_stats()["num_ooms"]
    return "fits", torch.accelerator.memory_stats()["num_ooms"]


def test_memory_ends_by_device():
    assert ranks.run(out_of_memory_on_one, 3) == [("out of memory", 1), ("out of memory", 1), ("fits", 0)]


def synchronous_works(rank, world):
    x = torch.ones(4, device="sim")
    found = []
    for null in (True, False):
        configure(null_work=null)
        options = dist.AllreduceOptions()
        options.asyncOp = False
        work = dist.group.WORLD.allreduce([x], options)
        found.append(work is None)
        barrier = dist.BarrierOptions()
        barrier.asyncOp = False
        barrier.device = torch.device("sim", rank)
        found.append(dist.group.WORLD.barrier(barrier) is None)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return found, dist.all_reduce(x) is None, x[0].item()


def test_synchronous_collectives_return_no_work_where_torch_is_new():
    for found in ranks.run(synchronous_works, 2):
        assert found == ([True, True, False, False], True, 16.0)


def communicators(rank, world):
    configure(communicator_us=200_000)
    set_link(line(10, 10))
    x = torch.ones(4, device="sim")
    stamps = [host_ms()]
    group = dist.new_group(list(range(world)))
    stamps.append(host_ms())
    for _ in range(2):
        dist.all_reduce(x, group=group)
        stamps.append(host_ms())
    return [round(b - a, 6) for a, b in itertools.pairwise(stamps)]


def test_a_communicator_is_made_at_its_first_operation():
    assert ranks.run(communicators, 2) == [[0.0, 200.0, 0.0]] * 2


def threads(rank, world):
    def count():
        return len(list(Path("/proc/self/task").iterdir()))

    before = count()
    streams = [torch.Stream("sim:0") for _ in range(4)]
    for stream in streams:
        with stream:
            sleep_us(10)
    dist.all_reduce(torch.ones(4, device="sim"))
    during = count()
    load().shut_down()
    return before, during, count()


def test_the_streams_threads_end_with_the_device():
    before, during, after = ranks.run(threads, 1)[0]
    assert during >= before + 5
    assert after == before


def leaves_a_collective(rank, world):
    """Rank 0 ends while a collective of its own waits for a rank that will not come."""
    group = dist.new_group(list(range(world)))
    x = torch.ones(4, device="sim")
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    if rank == 0:
        dist.all_reduce(x, group=group)
    return True


def test_a_process_ends_though_its_streams_wait():
    before = set(Path("/dev/shm").glob("simccl-*"))
    assert ranks.run(leaves_a_collective, 2, finish=False) == [True, True]
    assert set(Path("/dev/shm").glob("simccl-*")) <= before
