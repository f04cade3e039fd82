"""The bucket probe over NCCL, on fakes of its stream and its future: stamps on the right side of the right stream."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scaling.worker.measure import probe as module
from scaling.worker.measure.probe import BucketProbe

MS = 1_000_000
CLOSE = 5_000
"""Of the anchors' bound, the calls themselves and single precision."""


class Nccl:
    """All-reduces of `took_ns` on a stream of their own, each behind the one before and behind the gradients.

    As torch has it, the future is there at once, and what is hung on it runs at once too, with a stream current that
    waits for the all-reduce.
    """

    def __init__(self, cuda, took_ns):
        self.cuda, self.took_ns = cuda, took_ns

    def all_reduce(self, tensor, **_):
        self.cuda.enqueue(self.took_ns, "nccl", after="compute")
        return SimpleNamespace(get_future=lambda: SimpleNamespace(then=self.then, value=lambda: [tensor]))

    def then(self, done):
        self.cuda.current = "nccl"
        try:
            return done(SimpleNamespace(value=lambda: [torch.zeros(1)]))
        finally:
            self.cuda.current = "compute"


@pytest.fixture
def probe(cuda, fake_device, monkeypatch):
    nccl = Nccl(cuda, 30 * MS)
    monkeypatch.setattr(module.dist, "get_backend", lambda _group: "nccl")
    monkeypatch.setattr(module.dist, "get_world_size", lambda _group: 2)
    monkeypatch.setattr(module.dist, "all_reduce", nccl.all_reduce)
    ddp = SimpleNamespace(register_comm_hook=lambda _state, _hook: None)
    device = fake_device(cuda)
    return BucketProbe(ddp, object(), 2, device), device


def bucket(index, values):
    return SimpleNamespace(index=lambda: index, buffer=lambda: values)


def test_launch_is_behind_the_gradients_and_done_at_the_all_reduce_s_end(cuda, probe):
    buckets, device = probe
    with device.clock.window(8):
        begin = device.clock.stamp()
        waited = cuda.synchronised
        cuda.enqueue(5 * MS)  # the gradients of the first bucket
        buckets._hook(None, bucket(0, torch.ones(256)))
        cuda.enqueue(10 * MS)  # of the second: ready while the first is on the link
        buckets._hook(None, bucket(1, torch.ones(1024)))
        assert cuda.synchronised == waited
        taken = buckets.take(0)
    (start,) = device.clock.resolve([begin])
    rows = [device.clock.resolve(row) for row in taken]
    assert [row[:4] for row in rows] == [[0, 0, 2, 1024], [1, 0, 2, 4096]]
    ready, launch, done = ([row[i] - start for row in rows] for i in (4, 5, 6))
    assert ready == launch
    assert launch == pytest.approx([5 * MS, 15 * MS], abs=CLOSE)
    assert done == pytest.approx([35 * MS, 65 * MS], abs=CLOSE)  # one after the other


def test_the_sum_becomes_the_mean_before_it_goes_over_the_wire(cuda, probe):
    buckets, device = probe
    values = torch.full((4,), 6.0)
    with device.clock.window(2):
        buckets._hook(None, bucket(0, values))
    assert values.tolist() == [3.0] * 4
