"""Communicators that share a wire, and kernels that transfers slow down."""

import os
import pathlib
import signal
import time

import pytest
import torch
import torch.distributed as dist

from scaling_simulator import trace
from scaling_simulator.accelerator import SimulatedAccelerator
from scaling_simulator.device import configure, host_spend_us, line, set_cost, set_link, set_wire, sleep_us
from simulated_device import ranks

pytestmark = pytest.mark.slow
MS = 1_000_000


def spans(tasks):
    """Begin of transfer and end of each collective, in us after the first one's."""
    found = sorted(
        (task.name.partition("/")[2], task.met_ns, task.end_ns, task.alone_ns)
        for task in tasks
        if "/" in task.name
    )
    first = min(met for _, met, _, _ in found)
    return {name: ((met - first) / 1e3, (end - first) / 1e3, alone / 1e3) for name, met, end, alone in found}


def two_groups(rank, world, share=("a", "b"), late_us=0.0):
    """An all-reduce of 10 ms, and one of another group that is ready 5 ms later."""
    groups = {name: dist.new_group(list(range(world)), group_desc=name) for name in ("a", "b")}
    set_link([(0, 10_000)])
    x = {name: torch.ones(256, device="sim") for name in groups}
    for name, group in groups.items():  # communicators are made at their first use
        dist.all_reduce(x[name], group=group)
    set_wire(*share)
    dist.barrier()
    torch.accelerator.synchronize()
    with trace.recorded() as tasks:
        works = [dist.all_reduce(x["a"], group=groups["a"], async_op=True)]
        sleep_us(5000)
        if rank == 1:
            host_spend_us(late_us)
        works.append(dist.all_reduce(x["b"], group=groups["b"], async_op=True))
        for work in works:
            work.wait()
    return spans(tasks), x["b"][0].item()


def test_who_shares_a_wire_goes_at_half_the_pace_while_both_are_in_flight():
    expected = {"a": (0, 15_000, 10_000), "b": (5000, 20_000, 10_000)}
    for _ in range(2):
        assert ranks.run(two_groups, 2) == [(expected, 4.0)] * 2


def test_a_wire_for_all_groups_is_one_for_these_two():
    expected = {"a": (0, 15_000, 10_000), "b": (5000, 20_000, 10_000)}
    assert ranks.run(two_groups, 2, share=("*",)) == [(expected, 4.0)] * 2


def test_without_a_wire_in_common_they_do_not_disturb_each_other():
    expected = {"a": (0, 10_000, 10_000), "b": (5000, 15_000, 10_000)}
    assert ranks.run(two_groups, 2, share=()) == [(expected, 4.0)] * 2


def test_a_late_rank_moves_the_time_in_which_they_share():
    expected = {"a": (0, 12_000, 10_000), "b": (8000, 20_000, 10_000)}
    assert [found for found, _ in ranks.run(two_groups, 2, late_us=8000)] == [expected] * 2


def neighbours(rank, world, ranks_per_node):
    """Two pairs of ranks reduce at the same time, each over its own group."""
    pairs = [dist.new_group([0, 1], group_desc="left"), dist.new_group([2, 3], group_desc="right")]
    mine = pairs[rank // 2]
    set_link([(0, 10_000)])
    set_wire("left", "right", ranks_per_node=ranks_per_node)
    x = torch.ones(256, device="sim")
    dist.all_reduce(x, group=mine)
    dist.barrier()
    with trace.recorded() as tasks:
        dist.all_reduce(x, group=mine)
    return [(task.end_ns - task.met_ns) // 1000 for task in tasks if "/" in task.name]


def test_groups_share_the_wire_of_a_node_that_both_touch():
    assert ranks.run(neighbours, 4, ranks_per_node=2) == [[10_000]] * 4
    assert ranks.run(neighbours, 4, ranks_per_node=4) == [[20_000]] * 4


def at_other_times(rank, world, later):
    """Two pairs whose clocks are a second apart; the one whose clock is behind comes when the other one is done."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    set_link([(0, 10_000)])
    set_wire("*")
    device = SimulatedAccelerator(rank)
    x = torch.ones(256, device="sim")
    dist.all_reduce(x, group=pairs[rank // 2])
    torch.accelerator.synchronize()
    done = pathlib.Path(later)
    if rank >= 2:
        host_spend_us(1e6)
    else:
        with device.waiting():
            while not done.exists():
                time.sleep(0.01)
    with trace.recorded() as tasks:
        dist.all_reduce(x, group=pairs[rank // 2])
    if rank == 2:
        done.touch()
    return [(task.end_ns - task.met_ns) // 1000 for task in tasks if "/" in task.name]


def test_ranks_that_do_not_meet_need_not_agree_on_the_time_or_wait_for_each_other(tmp_path):
    assert ranks.run(at_other_times, 4, later=str(tmp_path / "done")) == [[10_000]] * 4


def beside_a_message(rank, world):
    """Rank 0 sends 10 ms to rank 2 while it reduces 10 ms with rank 1; neither waits for the other's peer."""
    reduces, sends = dist.new_group([0, 1], group_desc="reduces"), dist.new_group([0, 2], group_desc="sends")
    set_link(line(10_000, 1e6))
    set_wire("*")
    x, y = torch.ones(256, device="sim"), torch.ones(256, device="sim")

    def both():
        works = [] if rank == 2 else [dist.all_reduce(x, group=reduces, async_op=True)]
        if rank != 1:
            works.append((dist.isend if rank == 0 else dist.irecv)(y, 2 - rank, group=sends))
        for work in works:
            work.wait()

    both()
    dist.barrier()
    with trace.recorded() as tasks:
        both()
    return sorted((task.kind, (task.end_ns - task.met_ns) // 1000) for task in tasks if "/" in task.name)


def test_a_message_has_a_part_of_its_senders_wire():
    found = ranks.run(beside_a_message, 3)
    assert found == [[("all_reduce", 20_000), ("send", 20_000)], [("all_reduce", 20_000)], [("recv", 10_000)]]


def without_one(rank, world):
    set_wire("*")
    dist.all_reduce(torch.ones(256, device="sim"))
    torch.accelerator.synchronize()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(256, device="sim"), group=pair)
    with pytest.raises(RuntimeError, match="rank 2 is gone"):
        torch.accelerator.synchronize()
    return True


def test_a_rank_that_was_killed_is_not_waited_for():
    assert ranks.run(without_one, 3, finish=False) == [True, True, "ended with -9"]


def slowed(rank, world, slowdown, group=None):
    configure(slowdown=slowdown, kernel_us=0)
    set_link([(0, 3000)])
    set_cost(10_000, "aten::mm")
    x, w = torch.ones(256, device="sim"), torch.ones(8, 8, device="sim")
    dist.all_reduce(x, group=group)
    dist.barrier(group=group)
    with trace.recorded() as tasks:
        work = dist.all_reduce(x, async_op=True, group=group)
        for _ in range(2):
            torch.mm(w, w)
        work.wait()
    return [task.end_ns - task.start_ns for task in trace.of(tasks, "aten::mm")], [
        task.transfer_ns for task in trace.of(tasks, "all_reduce")
    ]


def test_a_transfer_slows_the_kernels_beside_it():
    assert ranks.run(slowed, 2, slowdown=0.5) == [([11 * MS, 10 * MS], [3 * MS])] * 2
    assert ranks.run(slowed, 2, slowdown=0.0) == [([10 * MS, 10 * MS], [3 * MS])] * 2


def in_groups_of_their_own(rank, world, store):
    """The first groups of two ranks are not the same, and not the whole job's."""
    file = dist.FileStore(store, world)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=world)
    pairs = [dist.new_group([0, 1], backend="simccl")]
    dist.barrier()
    pairs += [dist.new_group([2, 3], backend="simccl")]
    whole = dist.new_group(list(range(world)), backend="simccl")
    dist.all_reduce(torch.ones(8, device="sim"), group=whole)
    return [slowed(rank, world, slowdown=0.5, group=group) for group in (pairs[rank // 2], whole)]


def test_ranks_find_each_other_whose_first_groups_differ(tmp_path):
    """World sizes of 2 and 4 in one launch: the ranks of the first pair had a group before the others had any."""
    alike = [([11 * MS, 10 * MS], [3 * MS])] * 2
    assert ranks.run(in_groups_of_their_own, 4, group=False, store=str(tmp_path / "store")) == [alike] * 4
