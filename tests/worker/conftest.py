"""A CUDA device made of numbers: streams with queues, and a clock neither set by the host's nor in step with it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import EventClock

CALL_NS = 200
"""Every look at the host's clock and every record takes so long."""
WAKE_NS = 4_000
"""From an event's completion until a host thread that waits for it runs again."""


class FakeCuda:
    """Host time moves when the host calls; a stream is busy until some host time."""

    def __init__(self, offset_ns: int = -7_000_000_000, drift: float = 40e-6) -> None:
        self.now = 1_000_000_000
        self.offset_ns, self.drift = offset_ns, drift
        self.busy = {"compute": 0}
        self.current = "compute"
        self.created = self.synchronised = 0
        self.late_ns: Iterator[int] = itertools.repeat(0)
        """How much later than it could the host learns that an event was reached, one after the other."""

    def host_ns(self) -> int:
        self.now += CALL_NS
        return self.now

    def enqueue(self, ns: int, stream: str = "compute", after: str | None = None) -> None:
        """Work of `ns` on a stream, begun when the stream (and another) has nothing before it."""
        begin = max(self.now, self.busy.get(stream, 0), self.busy.get(after or stream, 0))
        self.busy[stream] = begin + ns

    def device_ns(self, host_ns: int) -> float:
        return (host_ns + self.offset_ns) * (1 + self.drift)

    def synchronize(self) -> None:
        self.synchronised += 1
        self.now = max(self.now, *self.busy.values()) + WAKE_NS

    def new_event(self) -> FakeEvent:
        self.created += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.reached = -1

    def record(self) -> None:
        self.cuda.now += CALL_NS
        self.reached = max(self.cuda.now, self.cuda.busy.get(self.cuda.current, 0))

    def synchronize(self) -> None:
        self.cuda.synchronised += 1
        self.cuda.now = max(self.cuda.now, self.reached) + WAKE_NS + next(self.cuda.late_ns)

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.reached >= 0 <= other.reached, "never recorded"
        assert max(self.reached, other.reached) <= self.cuda.now, "not complete"
        ms = (self.cuda.device_ns(other.reached) - self.cuda.device_ns(self.reached)) / 1e6
        return struct.unpack("f", struct.pack("f", ms))[0]  # single precision, as the driver has it


class FakeDevice(Cpu):
    """Tensors stay on the CPU; time is the fake's."""

    type = "cuda"

    def __init__(self, cuda: FakeCuda, copy_ns: int = 0) -> None:
        super().__init__()
        self.cuda, self.copy_ns = cuda, copy_ns
        self.clock = EventClock(cuda.new_event, cuda.synchronize)

    def load(self, batch):
        self.cuda.enqueue(self.copy_ns)
        return batch

    def synchronize(self) -> None:
        self.cuda.synchronize()


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr("scaling.worker.accelerator.clock.now_ns", fake.host_ns)
    return fake


@pytest.fixture
def fake_device():
    return FakeDevice


@pytest.fixture
def one_rank(tmp_path):
    """This process is the one rank of a Gloo group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
