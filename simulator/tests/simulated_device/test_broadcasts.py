"""DDP's broadcast of buffers follows its data: for whom each rank waits, held against the simulation's own record."""

import numpy as np
import pytest

from scaling.analysis.network.channel import Channel
from simulated_device import ranks

pytestmark = pytest.mark.slow

CLOSE_NS = 20_000
"""Copies of the buffers, and the launches of the stamps' own events."""
LATE_US = {
    "none": (0, 0, 0),
    "a receiver, by less than the broadcast takes": (0, 0, 300),
    "a receiver": (0, 0, 5000),
    "the root": (5000, 0, 0),
    "the root, and one receiver more": (1000, 0, 3000),
    "a receiver soon after the root": (100, 0, 400),
}
"""By case: how late each rank comes, on its stream. Rank 0 has the buffers."""


@pytest.fixture(scope="module")
def broadcast():
    return ranks.run(_broadcast, 3)


def _broadcast(rank, world):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from scaling.worker.parallel.waits import Broadcasts
    from scaling_simulator import trace
    from scaling_simulator.accelerator import SimulatedAccelerator
    from scaling_simulator.device import configure, line, set_link, sleep_us

    configure(launch_us=1, kernel_us=1)
    set_link(line(latency_us=500, gb_s=10))
    device = SimulatedAccelerator(rank)
    module = torch.nn.Linear(16, 16)
    module.register_buffer("kept", torch.zeros(4096))
    ddp = DistributedDataParallel(module.to(device.torch_device))
    inputs = torch.ones(4, 16, device=device.torch_device)
    for _ in range(2):  # DDP makes its buckets anew and tells the others, with broadcasts of its own
        ddp(inputs).sum().backward()
    found, waits = [], Broadcasts(device)
    for late in LATE_US.values():
        with device.clock.window(10), trace.recorded() as tasks:
            sleep_us(late[rank])
            with waits.on():
                loss = ddp(inputs).sum()
            loss.backward()  # ranks meet again behind it
        (task,) = trace.of(tasks, "broadcast")
        ((_, *stamps),) = waits.take()
        found.append((*device.clock.resolve(stamps), task.wait_ns, task.transfer_ns))
    return found


@pytest.mark.parametrize("case", LATE_US)
def test_a_rank_waits_for_those_whose_data_it_needs(broadcast, case):
    place = list(LATE_US).index(case)
    begin, end, wait, transfer = np.array([own[place] for own in broadcast], dtype=float).T
    found = (
        Channel.of("nccl", clock_bound_ns=0).awaited(begin[None], end[None]).waited(begin[None], end[None])[0]
    )
    assert found == pytest.approx(wait, abs=CLOSE_NS)
    assert end - begin - found == pytest.approx(transfer, abs=2 * CLOSE_NS)


def test_the_root_of_a_broadcast_is_done_before_a_late_receiver_comes(broadcast):
    place = list(LATE_US).index("a receiver")
    (_, done, *_), _, (came, *_) = (own[place] for own in broadcast)
    assert done < came
