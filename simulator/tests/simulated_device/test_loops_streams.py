"""A loop that reduces its gradients on a stream of its own: the wait of the stream that computes, and who is late."""

import pytest
import torch
import torch.distributed as dist

from scaling import Probe
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling_simulator.device import configure, line, set_cost, set_link, sleep_us
from simulated_device import ranks

pytestmark = pytest.mark.slow
STEPS, LATE_US, WIDTH = 65, 4000, 64


def loop(rank, world, folder="", waits="stream"):
    """`waits`: how the stream that computes waits for the other one; torch's own class of streams cannot be seen."""
    configure(launch_us=2, math=False)
    set_link(line(latency_us=300, gb_s=1))
    set_cost(1000, "aten::mm", "aten::addmm")
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).to("sim")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)
    inputs, beside = torch.ones(8, WIDTH, device="sim"), torch.sim.Stream()
    with Probe(net, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                if rank == 1:
                    sleep_us(LATE_US)
                net(inputs).square().mean().backward()
                beside.wait_stream(torch.sim.current_stream())
                with torch.sim.stream(beside):
                    for parameter in net.parameters():
                        dist.all_reduce(parameter.grad)
                    reduced = torch.sim.Event()
                    reduced.record()
                if waits == "stream":
                    torch.sim.current_stream().wait_stream(beside)
                elif waits == "event":
                    torch.sim.current_stream().wait_event(reduced)
                else:
                    torch.accelerator.current_stream().wait_stream(beside)
                optimizer.step()
                optimizer.zero_grad()
    return sum(p.nbytes for p in net.parameters())


@pytest.mark.parametrize("waits", ["stream", "event"])
def test_a_stream_that_carries_a_collective_is_waited_for(tmp_path, waits):
    size, _ = ranks.run(loop, 2, folder=str(tmp_path / "run"), waits=waits)
    (point,) = rebuild(RunFolder(tmp_path / "run")).analysis.points
    assert (point.comm.bytes_per_step, point.comm.unclaimed_bytes) == (size, 0)
    assert (point.straggler.rank, point.straggler.phase) == (1, "input")
    assert point.straggler.cost_ms.value == pytest.approx(LATE_US / 1e3, rel=0.05)


def test_where_the_wait_is_not_seen_nobody_is_named(tmp_path):
    size, _ = ranks.run(loop, 2, folder=str(tmp_path / "run"), waits="unseen")
    analysis = rebuild(RunFolder(tmp_path / "run")).analysis
    (point,) = analysis.points
    assert point.comm.unclaimed_bytes == size
    assert point.straggler is None
    assert (
        "100% of the bytes that a step sends were not seen to be waited for"
        in analysis.verdicts[0].evidence[0]
    )
