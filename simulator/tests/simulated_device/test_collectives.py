"""Collectives by themselves: what they take, what they pass, and who reads too early."""

import pytest
import torch
import torch.distributed as dist

from scaling_simulator import trace
from scaling_simulator.device import configure, exactly, host_ms, line, link_ns, set_link
from simulated_device import ranks

pytestmark = pytest.mark.slow


def collective(call):
    """When one collective is done on this rank, and its task."""
    with trace.recorded() as tasks:
        begin = host_ms()
        call()
        launched = host_ms()
    return next(task for task in tasks if "/" in task.name), launched - begin


def every_collective(rank, world):
    configure(launch_us=5)
    set_link([(0, 200), (65536, 1500), (65536, 2000), (10_000_000, 100_000)])  # a jump, as between protocols
    mib = torch.full((1 << 18,), float(rank + 1), device="sim")
    small, gathered, part = (
        torch.ones(1024, device="sim"),
        torch.empty(world << 18, device="sim"),
        torch.empty((1 << 18) // world, device="sim"),
    )
    calls = {
        "all_reduce": (lambda: dist.all_reduce(mib), 1 << 20),
        "all_reduce small": (lambda: dist.all_reduce(small), 4096),
        "all_gather": (lambda: dist.all_gather_into_tensor(gathered, mib), world << 20),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, mib), 1 << 20),
        "broadcast": (lambda: dist.broadcast(mib, 0), 1 << 20),
        "all_to_all": (lambda: dist.all_to_all_single(gathered[: 1 << 18], mib), 1 << 20),
        "reduce": (lambda: dist.reduce(mib, 0), 1 << 20),
    }
    found = {}
    for name, (call, payload) in calls.items():
        dist.barrier()
        task, host = collective(call)
        found[name] = (
            task.end_ns - task.start_ns - link_ns(name.split()[0], payload, world),
            exactly(host),
            task.bytes == payload,
        )
    return found


def test_every_collective_takes_what_its_curve_says_and_blocks_no_host():
    for found in ranks.run(every_collective, 2):
        assert found == dict.fromkeys(found, (0, 5000, True))
        assert len(found) == 7


def values(rank, world):
    x = torch.full((3,), float(rank + 1), device="sim")
    dist.all_reduce(x)
    listed = [torch.empty(2, device="sim") for _ in range(world)]
    dist.all_gather(listed, torch.full((2,), float(rank), device="sim"))
    reduced = {}
    for name in ("AVG", "MAX", "MIN", "PRODUCT"):
        t = torch.full((2,), float(rank + 2), device="sim", dtype=torch.bfloat16)
        dist.all_reduce(t, getattr(dist.ReduceOp, name))
        reduced[name] = t[0].item()
    sent, got = ([1, 2], [1, 3]) if rank == 0 else ([3, 4], [2, 4])
    uneven = torch.empty(sum(got), device="sim")
    dist.all_to_all_single(uneven, torch.full((sum(sent),), float(rank), device="sim"), got, sent)
    lists = [torch.empty(2, device="sim") for _ in range(world)]
    dist.all_to_all(lists, [torch.full((2,), 10.0 * rank + r, device="sim") for r in range(world)])
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    part = torch.empty(2, device="sim")
    dist.scatter(
        part, [torch.full((2,), 7.0 + r, device="sim") for r in range(world)] if rank == 0 else None, 0
    )
    collected = [torch.empty(2, device="sim") for _ in range(world)] if rank == 0 else None
    dist.gather(part, collected, 0)
    return {
        "sum": x[0].item(),
        "listed": [t[0].item() for t in listed],
        "reduced": reduced,
        "uneven": uneven.tolist(),
        "lists": [t[0].item() for t in lists],
        "objects": objects,
        "part": part[0].item(),
        "collected": [t[0].item() for t in collected or []],
    }


def test_collectives_pass_the_right_values():
    first, second = ranks.run(values, 2)
    common = {
        "sum": 3.0,
        "listed": [0.0, 1.0],
        "reduced": {"AVG": 2.5, "MAX": 3.0, "MIN": 2.0, "PRODUCT": 6.0},
    }
    for found in (first, second):
        assert {key: found[key] for key in common} == common
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
    assert first["uneven"] == [0, 1, 1, 1]
    assert second["uneven"] == [0, 0, 1, 1, 1, 1]
    assert (first["lists"], second["lists"]) == ([0.0, 10.0], [1.0, 11.0])
    assert (first["part"], second["part"], first["collected"]) == (7.0, 8.0, [7.0, 8.0])


def missing_wait(rank, world):
    configure(virtual_clock=False)
    set_link(line(1_000_000, 1))
    x = torch.ones(4, device="sim")
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    done = work.is_completed()
    early = x.clone()
    work.wait()
    return done, early.tolist(), x.clone().tolist()


def test_who_does_not_wait_for_a_collective_reads_old_values():
    assert ranks.run(missing_wait, 2) == [(False, [2.0] * 4, [4.0] * 4)] * 2
