"""A Probe around loops of sharded models on accelerators whose times are known: what a rank waits for, and for whom."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling.analysis.decompose.quantities import Sent
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling_simulator.device import configure, line, set_cost, set_link, set_wire, sleep_us
from simulated_device import ranks
from simulated_device.test_sharded import blocks

pytestmark = pytest.mark.slow
PRODUCTS = ("aten::mm", "aten::addmm")
LATENCY_US, GB_S = 500, 0.05
COST_US, LATE_US = 4000, 400
STEPS, COUNT = 45, 4
LATE_MS = COUNT * 6 * LATE_US / 1e3
"""Six products of a block: two in forward, four in backward."""


def loop(rank, world, folder="", copies=1, late=False):
    configure(launch_us=5, math=False)
    set_link(line(LATENCY_US, GB_S))
    set_cost(COST_US + (LATE_US if late and rank == 1 else 0), *PRODUCTS)
    net = blocks(count=COUNT).to("sim")
    shape, names = ((world,), ("dp",)) if copies == 1 else ((copies, world // copies), ("copies", "dp"))
    mesh = init_device_mesh("sim", shape, mesh_dim_names=names)
    if copies > 1:  # a rank's communicators share its wire, as they do where it has one card
        set_wire(*(group.group_desc for group in mesh.get_all_groups()), ranks_per_node=1)
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, foreach=False)
    inputs = torch.ones(8, 64, device="sim")
    with Probe(net, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                net(inputs).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    dist.barrier()
    return sum(p.numel() * p.element_size() for p in net.parameters())


def taken(folder, world, **how):
    """The point of a loop, its results, and the bytes of the model."""
    (size, *_) = ranks.run(loop, world, folder=str(folder), **how)
    analysis = rebuild(RunFolder(folder)).analysis
    return analysis.points[0], analysis, size


def wire_ms(one):
    """Of all collectives of a kind and phase, by the link above; a ring's hops share its latency."""
    sent = Sent(kind=one.kind, phase=one.phase, unit=0, bytes=one.bytes, ranks=one.ranks, axis="shard")
    return one.calls * LATENCY_US / 1e3 + sent.moved / (GB_S * 1e6)


def test_every_transfer_is_the_links_and_what_is_hidden_is_not_exposed(tmp_path):
    point, analysis, size = taken(tmp_path / "own", 2)
    assert (point.parallel.strategy, point.parallel.shard) == ("fsdp", 2)
    kinds = {(one.kind, one.phase): one for one in point.comm.collectives}
    gathered, again, scattered = (
        kinds[key]
        for key in (("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward"))
    )
    assert gathered.bytes == scattered.bytes == size
    assert again.bytes <= size
    for one in kinds.values():
        assert one.transfer_ms.value == pytest.approx(wire_ms(one), rel=0.01)
    # sampled by the first rank of the host
    assert RunFolder(tmp_path / "own").launch(0).telemetry(0).exists()
    parts = point.parts_ms
    whole = sum(getattr(parts, name).value for name in ("input", "forward", "backward", "optimizer", "host"))
    whole += parts.exposed_transfer.value + parts.exposed_skew.value
    assert whole == pytest.approx(point.step_ms.value, rel=0.01)
    assert parts.exposed_skew.value == pytest.approx(0, abs=0.05)
    assert parts.forward.value + parts.backward.value == pytest.approx(COUNT * 6 * COST_US / 1e3, rel=0.02)
    assert point.straggler is None
    assert analysis.quality.dropped_blocks == 0


def test_a_late_rank_is_named_with_what_it_costs(tmp_path):
    point, analysis, _ = taken(tmp_path / "own", 2, late=True)
    assert point.straggler.rank == 1
    lost = point.loss.straggler.value * point.step_ms.value
    assert lost == pytest.approx(LATE_MS, rel=0.05)
    assert analysis.verdicts[0].cause in ("straggler", "link_bandwidth", "link_latency")


def test_copies_reduce_over_the_other_axis(tmp_path):
    point, _, size = taken(tmp_path / "own", 4, copies=2)
    assert (point.parallel.strategy, point.parallel.replicate, point.parallel.shard) == ("hsdp", 2, 2)
    kinds = {one.kind: one for one in point.comm.collectives}
    assert kinds["all_reduce"].communicator == "replicate"
    assert kinds["all_reduce"].bytes == size // 2
    assert kinds["all_reduce"].transfer_ms.value == pytest.approx(wire_ms(kinds["all_reduce"]), rel=0.01)
    assert kinds["reduce_scatter"].communicator == "shard"


ROLLOUT_US = 20_000


def rollouts(rank, world, folder=""):
    """Steps with two named phases, of which the later ranks' rollouts take longer on their streams."""
    configure(launch_us=5, math=False)
    set_link(line(LATENCY_US, GB_S))
    set_cost(COST_US, *PRODUCTS)
    net = DistributedDataParallel(blocks(count=COUNT).to("sim"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, foreach=False)
    inputs = torch.ones(8, 64, device="sim")
    with Probe(net, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                with probe.phase("rollout"):
                    sleep_us(ROLLOUT_US * (1 + rank))
                with probe.phase("update"):
                    net(inputs).pow(2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    dist.barrier()


def test_a_named_phase_takes_what_its_stream_does(tmp_path):
    ranks.run(rollouts, 2, folder=str(tmp_path / "own"))
    (point,) = rebuild(RunFolder(tmp_path / "own")).analysis.points
    rollout, update = point.phases
    assert rollout.ms.value == pytest.approx(1.5 * ROLLOUT_US / 1e3, rel=0.01)
    assert (rollout.late_rank, update.late_rank) == (1, None)
    assert rollout.late_ms.value == pytest.approx(ROLLOUT_US / 1e3, rel=0.01)
    assert (point.straggler.rank, point.straggler.phase) == (1, "rollout")
    assert update.waits_ms.value > ROLLOUT_US / 2e3
    assert point.parts_ms.host.value == pytest.approx(rollout.ms.value, rel=0.05)
