"""FSDP2, HSDP, tensor parallel and FSDP with TP on ranks of the simulated device."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from scaling_simulator import figures, trace
from scaling_simulator.device import configure, exactly, host_ms, line, link_ns, set_cost, set_link
from simulated_device import ranks

pytestmark = pytest.mark.slow
MS = 1_000_000
PRODUCTS = ("aten::mm", "aten::addmm")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def blocks(width=64, count=4):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(width) for _ in range(count)])


def whole(parameter):
    return parameter.full_tensor().cpu() if isinstance(parameter, DTensor) else parameter.cpu()


def train(net, reference, part, parts, steps=3):
    """Three steps of both: what each took on the device, what ran in the last, how far the weights are apart."""
    torch.manual_seed(1)
    data = torch.randn(parts, 8, 64)
    ours, theirs = (torch.optim.SGD(n.parameters(), lr=0.05, foreach=False) for n in (net, reference))
    times = []
    for _ in range(steps):
        dist.barrier()
        torch.accelerator.reset_peak_memory_stats()
        with trace.recorded() as tasks:
            begin, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
            started = host_ms()
            begin.record()
            net(data[part].to("sim", non_blocking=True)).pow(2).mean().backward()
            free = host_ms() - started
            end.record()
        times.append(exactly(begin.elapsed_time(end)))
        ours.step()
        ours.zero_grad()
        (sum(reference(d).pow(2).mean() for d in data) / parts).backward()
        theirs.step()
        theirs.zero_grad()
    off = max(
        float((whole(a.detach()) - b.detach()).abs().max())
        for a, b in zip(net.parameters(), reference.parameters(), strict=True)
    )
    return {
        "times": times,
        "tasks": tasks,
        "off_cpu": off,
        "host_free_ms": free,
        "peak": torch.accelerator.max_memory_allocated(),
    }


def off_model(tasks, sizes):
    """What each transfer took beyond its group's link; `sizes` has the number of ranks by group."""
    found = []
    for task in tasks:
        kind, _, group = task.name.partition("/")
        if group in sizes:
            found.append(task.transfer_ns - link_ns(kind, task.bytes, sizes[group], group))
    return found


def fsdp(rank, world, math=True):
    configure(launch_us=5, math=math)
    set_link(line(500, 0.05))
    set_cost(4000, *PRODUCTS)
    reference = blocks()
    net = copy.deepcopy(reference).to("sim")
    mesh = init_device_mesh("sim", (world,), mesh_dim_names=("dp",))
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    found = train(net, reference, rank, world)
    gathers, scatters, products = (
        trace.of(found["tasks"], *kinds) for kinds in (("all_gather",), ("reduce_scatter",), PRODUCTS)
    )
    found["gathers_ns"], found["gathers_hidden_ns"] = (
        trace.busy_ns(gathers),
        figures.overlap_ns(gathers, products),
    )
    found["scatters_ns"], found["scatters_hidden_ns"] = (
        trace.busy_ns(scatters),
        figures.overlap_ns(scatters, products),
    )
    found["counts"] = len(gathers), len(scatters)
    found["streams"] = [{task.stream for task in tasks} for tasks in (gathers, scatters, products)]
    # the group of a mesh over all ranks
    found["off_model_ns"] = off_model(found.pop("tasks"), {"default_pg": world})
    return found


@pytest.fixture(scope="module")
def sharded():
    return ranks.run(fsdp, 2)


def test_fsdp_hides_gathers_and_scatters_under_compute(sharded):
    for found in sharded:
        assert found["counts"] == (4 + 4, 4)
        assert found["off_model_ns"] == [0] * 12
        assert 0.5 < found["gathers_hidden_ns"] / found["gathers_ns"] < 1
        assert 0.5 < found["scatters_hidden_ns"] / found["scatters_ns"] < 1
        gather, scatter, compute = found["streams"]
        assert compute == {0}
        assert gather.isdisjoint(scatter | compute)
        assert scatter.isdisjoint(compute)


def test_fsdp_learns_as_the_cpu_and_leaves_the_host_free(sharded):
    for found in sharded:
        assert found["off_cpu"] < 1e-6
        assert found["host_free_ms"] < 0.05 * found["times"][-1] / MS


def test_fsdp_takes_the_same_time_and_memory_on_every_run_and_with_arithmetic_off(sharded):
    for math in (True, False):
        again = ranks.run(fsdp, 2, math=math)
        for name in ("times", "peak", "gathers_hidden_ns", "scatters_hidden_ns"):
            assert [found[name] for found in again] == [found[name] for found in sharded]


def hsdp(rank, world):
    set_link(line(300, 0.1), "mesh_shard")
    set_link(line(2000, 0.02), "mesh_replicate")
    set_cost(3000, *PRODUCTS)
    reference = blocks()
    net = copy.deepcopy(reference).to("sim")
    mesh = init_device_mesh("sim", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    found = train(net, reference, rank, world)
    tasks = found.pop("tasks")
    groups = {(task.kind, task.name.partition("/")[2]) for task in tasks if "/" in task.name}
    return found["off_cpu"], off_model(tasks, {"mesh_shard": 2, "mesh_replicate": 2}), groups


def test_hsdp_has_a_link_for_each_dimension_of_its_mesh():
    for off_cpu, off, groups in ranks.run(hsdp, 4):
        assert off_cpu < 1e-6
        assert off == [0] * (8 + 4 + 4)
        assert groups == {
            ("all_gather", "mesh_shard"),
            ("reduce_scatter", "mesh_shard"),
            ("all_reduce", "mesh_replicate"),
        }


def tensor_parallel(rank, world):
    set_link(line(500, 0.05))
    reference = blocks()
    net = copy.deepcopy(reference).to("sim")
    mesh = init_device_mesh("sim", (world,), mesh_dim_names=("tp",))
    for block in net:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    found = train(net, reference, 0, 1)
    reduces = trace.of(found["tasks"], "all_reduce")
    return found["off_cpu"], len(reduces), off_model(reduces, {"default_pg": world})


def test_tensor_parallel_reduces_activations():
    for off_cpu, count, off in ranks.run(tensor_parallel, 2):
        assert off_cpu < 1e-6
        assert count == 2 * 4  # one in forward and one in backward a block
        assert off == [0] * 8


def two_dimensions(rank, world):
    """FSDP with TP, arithmetic off: times, peaks and the operations of each group."""
    configure(launch_us=5, flops=1e12, memory_bytes_s=1e11, math=False)
    set_link(line(20, 50), "mesh_tp")
    set_link([(0, 30), (32768, 46), (32768, 103), (1e9, 1e5 + 103)], "mesh_dp")
    mesh = init_device_mesh("sim", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    width = 512
    net = nn.Sequential(
        *[
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(4)
        ]
    ).to("sim")
    for block in net:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(256, width, device="sim")
    found = []
    for _ in range(3):
        dist.barrier()
        torch.accelerator.reset_peak_memory_stats()
        with trace.recorded() as tasks:
            started = host_ms()
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append((exactly(host_ms() - started), torch.accelerator.max_memory_allocated()))
    counts = {
        name: sum(task.name == name for task in tasks)
        for name in {task.name for task in tasks if "/" in task.name}
    }
    return found, counts, off_model(tasks, {"mesh_tp": 2, "mesh_dp": world // 2})


def test_fsdp_with_tensor_parallel_on_eight_ranks_is_exact():
    first, *others = ranks.run(two_dimensions, 8)
    assert others == [first] * 7
    found, counts, off = first
    assert found[1] == found[2]
    assert set(counts) == {"all_gather/mesh_dp", "reduce_scatter/mesh_dp", "all_reduce/mesh_tp"}
    assert counts["reduce_scatter/mesh_dp"] == 4
    assert set(off) == {0}


def mixed_and_meta(rank, world):
    reference = blocks()
    mesh = init_device_mesh("sim", (world,), mesh_dim_names=("dp",))
    net = copy.deepcopy(reference).to("sim")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in net:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    off = train(net, reference, rank, world)["off_cpu"]
    with torch.device("meta"):
        late = blocks()
    for block in late:
        fully_shard(block, mesh=mesh)
    late.to_empty(device="sim")
    for parameter in late.parameters():
        nn.init.normal_(parameter, std=0.02)
    late(torch.randn(8, 64, device="sim")).sum().backward()
    norm = nn.utils.clip_grad_norm_(late.parameters(), 1.0).full_tensor().item()
    state = get_model_state_dict(late, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return off, norm, sorted({value.device.type for value in state.values()}), len(state)


def test_mixed_precision_meta_device_clipping_and_whole_state():
    first, second = ranks.run(mixed_and_meta, 2)
    for off, norm, *_ in (first, second):
        assert 0 < off < 1e-2
        assert norm > 0
    assert first[1] == second[1]
    assert (first[2:], second[2:]) == ((["cpu"], 4 * 6), ([], 0))  # the whole state is rank 0's
