"""DDP, with its real reducer, on ranks of the simulated device: times are the model's, weights the CPU's."""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from scaling_simulator import figures, trace
from scaling_simulator.device import (
    configure,
    exactly,
    host_ms,
    host_spend_us,
    line,
    link_ns,
    set_cost,
    set_link,
    sleep_us,
)
from simulated_device import ranks

pytestmark = pytest.mark.slow
MS = 1_000_000
WIDTH, LAYERS = 256, 6


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)])


def cluster(math=True):
    """Products of 6 ms; a bucket's all-reduce of about 9 ms; a launch of 5 us."""
    configure(launch_us=5, math=math)
    set_link(line(1000, 0.03))
    set_cost(6000, "aten::mm", "aten::addmm")


def ddp(net, rank, **options):
    return DistributedDataParallel(
        net.to("sim"), device_ids=[rank], bucket_cap_mb=0.25, gradient_as_bucket_view=True, **options
    )


def training(rank, world, math=True, steps=4, late_us=0.0, late_on="host"):
    """What each step took and what ran in the last one; whether the weights are a CPU's that saw all ranks' data."""
    cluster(math)
    reference = layers()
    net = ddp(copy.deepcopy(reference), rank)
    torch.manual_seed(1)
    data = torch.randn(world, 8, WIDTH)
    ours, theirs = (torch.optim.SGD(n.parameters(), lr=0.05) for n in (net, reference))
    times = []
    for _ in range(steps):
        dist.barrier()
        if rank == 1 and late_us:
            (host_spend_us if late_on == "host" else sleep_us)(late_us)
        with trace.recorded() as tasks:
            begin, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
            started = host_ms()
            begin.record()
            net(data[rank].to("sim", non_blocking=True)).pow(2).mean().backward()
            free = host_ms() - started
            end.record()
        times.append(exactly(begin.elapsed_time(end)))
        ours.step()
        ours.zero_grad()
        (sum(reference(d).pow(2).mean() for d in data) / world).backward()
        theirs.step()
        theirs.zero_grad()
    off = max(
        float((a.cpu() - b).abs().max())
        for a, b in zip(net.parameters(), reference.parameters(), strict=True)
    )
    reduces, products = trace.of(tasks, "all_reduce"), trace.of(tasks, "aten::mm", "aten::addmm")
    return {
        "times": times,
        "host_free_ms": free,
        "reduces": reduces,
        "products_ns": trace.busy_ns(products),
        "hidden_ns": figures.overlap_ns(reduces, products),
        "off_model_ns": [task.transfer_ns - link_ns("all_reduce", task.bytes, world) for task in reduces],
        "off_cpu": off,
        "streams": ({task.stream for task in reduces}, {task.stream for task in products}),
    }


@pytest.fixture(scope="module")
def step():
    return ranks.run(training, 2)


def test_transfers_take_what_the_link_says(step):
    for found in step:
        assert len(found["reduces"]) == LAYERS
        assert found["off_model_ns"] == [0] * LAYERS


def test_buckets_go_while_the_backward_goes_on(step):
    for found in step:
        assert found["products_ns"] == (3 * LAYERS - 1) * 6 * MS  # the first layer's input needs no gradient
        reducing = trace.busy_ns(found["reduces"])
        assert 0.6 * reducing < found["hidden_ns"] < reducing
        communicator, compute = found["streams"]
        assert compute == {0}
        assert len(communicator) == 1
        assert communicator.isdisjoint(compute)
        for before, after in itertools.pairwise(found["reduces"]):
            assert after.start_ns >= before.end_ns


def test_the_host_is_free_long_before_the_device(step):
    for found in step:
        assert found["host_free_ms"] < 0.05 * found["times"][-1] / MS


def test_weights_are_those_of_one_cpu_that_saw_all_data(step):
    assert all(found["off_cpu"] < 1e-6 for found in step)


def test_times_are_the_same_on_every_run_and_with_arithmetic_off(step):
    again, without = ranks.run(training, 2), ranks.run(training, 2, math=False)
    expected = [found["times"] for found in step]
    assert [found["times"] for found in again] == expected
    assert [found["times"] for found in without] == expected
    assert expected[0][2] == expected[0][3]  # DDP makes its buckets anew after the first step


@pytest.mark.parametrize("late_on", ["host", "device"])
def test_the_others_wait_for_a_late_rank(step, late_on):
    early, late = ranks.run(training, 2, late_us=50_000, late_on=late_on)
    usual, by = step[0]["times"][-1], 50 * MS + (5000 if late_on == "device" else 0)  # a kernel's launch
    assert early["reduces"][0].wait_ns == by
    assert sum(task.wait_ns for task in late["reduces"]) == 0
    for one, other in zip(early["reduces"], late["reduces"], strict=True):
        assert (one.met_ns, one.end_ns) == (other.start_ns, other.end_ns)
    assert early["off_model_ns"] == late["off_model_ns"] == [0] * LAYERS
    assert early["times"][-1] == usual + by
    assert late["times"][-1] == usual


def variants(rank, world):
    found = {}
    data = torch.randn(world, 4, 3, 8, 8, generator=torch.Generator().manual_seed(2))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out, self.unused = (
                nn.Conv2d(3, 8, 3),
                nn.BatchNorm2d(8),
                nn.Linear(288, 10),
                nn.Linear(4, 4),
            )

        def forward(self, x):
            return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))

    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        torch.manual_seed(0)
        net = DistributedDataParallel(Net().to("sim"), device_ids=[rank], **options)
        for _ in range(3):
            net(data[rank].to("sim")).pow(2).mean().backward()
        with net.no_sync(), trace.recorded() as tasks:
            net(data[rank].to("sim")).sum().backward()
        found[next(iter(options))] = (
            float(net.module.conv.weight.grad.norm()),
            len(trace.of(tasks, "all_reduce")),
        )
    for hook in ("fp16_compress_hook", "allreduce_hook"):
        net = DistributedDataParallel(nn.Linear(64, 64).to("sim"), device_ids=[rank])
        net.register_comm_hook(None, getattr(default_hooks, hook))
        with trace.recorded() as tasks:
            net(torch.full((2, 64), float(rank + 1), device="sim")).sum().backward()
        found[hook] = (
            net.module.weight.grad[0, 0].item(),
            sum(task.bytes for task in trace.of(tasks, "all_reduce")),
        )
    net._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(12):
        net(torch.ones(2, 64, device="sim")).sum().backward()
    found["logger"] = net._get_ddp_logging_data()["backward_compute_time"] > 0
    return found


def test_variants_of_ddp():
    first, second = ranks.run(variants, 2)
    for found in (first, second):
        assert found["find_unused_parameters"][1] == 0  # no_sync
        assert found["fp16_compress_hook"] == (3.0, 64 * 65 * 2)
        assert found["allreduce_hook"] == (3.0, 64 * 65 * 4)
        assert found["logger"]
    for name in ("find_unused_parameters", "static_graph"):
        assert first[name][0] > 0


def scaler_and_accumulation(rank, world):
    """AMP with a scaler over four micro-batches, of which the last one reduces."""
    cluster()
    net = ddp(layers(), rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("sim", init_scale=2.0**8)
    for _ in range(2):  # DDP makes its buckets anew after the first backward
        with trace.recorded() as tasks:
            for micro in range(4):
                net.require_backward_grad_sync = micro == 3
                with torch.amp.autocast("sim", dtype=torch.bfloat16):
                    loss = net(torch.ones(8, WIDTH, device="sim")).float().pow(2).mean()
                scaler.scale(loss / 4).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    reduced = sum(task.bytes for task in trace.of(tasks, "all_reduce"))
    return reduced, all(bool(p.isfinite().all()) for p in net.parameters())


def test_accumulation_with_amp_and_a_scaler_reduces_once():
    assert ranks.run(scaler_and_accumulation, 2) == [(4 * LAYERS * WIDTH * (WIDTH + 1), True)] * 2
