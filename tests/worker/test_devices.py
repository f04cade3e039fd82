"""Which device a rank takes, and what it says of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scaling.worker import devices
from scaling.worker.devices import Device, open_device


def spec(device="cuda", backend="nccl", launcher="local"):
    return SimpleNamespace(topology=SimpleNamespace(device=device, backend=backend), launcher=launcher)


@pytest.fixture
def four(monkeypatch):
    """Four CUDA devices to choose from; what is chosen is its index."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(devices, "CudaDevice", lambda index: index)


def test_the_cpu_needs_no_choice():
    assert open_device(spec("cpu", "gloo"), rank=3, local_rank=3).type == "cpu"


def test_a_rank_takes_the_device_of_its_local_rank(four):
    assert [open_device(spec(), rank=4 + r, local_rank=r) for r in range(4)] == [0, 1, 2, 3]


def test_with_gloo_ranks_share_devices(four):
    assert [open_device(spec(backend="gloo"), rank=r, local_rank=r) for r in range(6)] == [0, 1, 2, 3, 0, 1]


def test_emulated_hosts_share_one_machine(four):
    chosen = [open_device(spec(backend="gloo", launcher="emulated"), rank=r, local_rank=0) for r in range(3)]
    assert chosen == [0, 1, 2]


def test_nccl_needs_a_device_a_rank(four):
    with pytest.raises(RuntimeError, match=r"local rank 4 .* use topology.backend=gloo"):
        open_device(spec(), rank=4, local_rank=4)


def test_no_device_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match=r"topology\.device=cpu"):
        open_device(spec(), rank=0, local_rank=0)


def test_the_cpu_moves_nothing_and_has_no_cuda_facts():
    device = Device()
    batch = ([1], {"x": 2})
    assert device.load(device.stage(batch)) is batch
    assert device.peak_bytes() > 2**20
    assert set(device.facts().values()) == {None}
    assert {"cuda", "nccl", "device_name", "compute_capability", "device_uuid"} <= set(device.facts())


def test_the_peak_of_a_stretch_is_what_it_held_and_not_what_came_before():
    device = Device()
    block = torch.ones(64 * 2**20 // 4)
    high = device.peak_bytes()
    del block
    device.reset_peak()
    assert device.peak_bytes() <= high
    assert device.peak_bytes() > 10 * 2**20  # the process itself
    assert device.foreign_bytes() is None


def test_on_a_device_what_torch_does_not_know_of_is_a_communicator_s(monkeypatch):
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (70 * gib, 80 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 9 * gib)
    device = object.__new__(devices.CudaDevice)
    device.torch_device = torch.device("cuda", 0)
    assert device.foreign_bytes() == gib
