"""Which device a rank takes, and what it says of it."""

from types import SimpleNamespace

import pytest
import torch

from scaling.settings.topology import Topology
from scaling.worker.accelerator import cuda, devices
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.devices import open_device, require


def spec(device="cuda", backend="nccl", launcher="local", **env):
    topology = Topology(name="local", kind="local", ranks_per_host=4, device=device, backend=backend)
    return SimpleNamespace(topology=topology, launcher=launcher, env=env)


@pytest.fixture
def four(monkeypatch):
    """Four CUDA devices to choose from; what is chosen is its index."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(devices, "TorchAccelerator", lambda _type, index: index)


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


def test_nccl_that_can_and_was_told_to_joins_ranks_of_one_device(four, monkeypatch):
    told = spec(NCCL_MULTI_RANK_GPU_ENABLE="1")
    monkeypatch.setattr(cuda, "loaded_nccl", lambda: (2, 30, 7))
    assert [open_device(told, rank=r, local_rank=r) for r in range(6)] == [0, 1, 2, 3, 0, 1]
    with pytest.raises(RuntimeError, match="of its own"):
        open_device(spec(), rank=4, local_rank=4)


def test_nccl_that_cannot_says_from_when_on_it_could(four, monkeypatch):
    monkeypatch.setattr(cuda, "loaded_nccl", lambda: (2, 29, 3))
    with pytest.raises(RuntimeError, match=r"before 2\.30, and this is 2\.29\.3; use topology\.backend=gloo"):
        open_device(spec(NCCL_MULTI_RANK_GPU_ENABLE="1"), rank=4, local_rank=4)


class Volta(Cpu):
    def formats(self):
        return ("fp64", "fp32", "fp16")

    def facts(self):
        return {**super().facts(), "device_name": "Tesla V100"}


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_that_a_device_lacks_is_refused_where_it_would_be_emulated(precision):
    with pytest.raises(
        RuntimeError, match=f"precision={precision}: Tesla V100 does not have it; it has fp32, fp16"
    ):
        require(Volta(), precision)
    require(Volta(), "fp16")
    require(Volta(), "fp32")


@pytest.mark.parametrize(
    ("capability", "has"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((9, 0), True)]
)
def test_tf32_and_bf16_came_with_compute_capability_8(monkeypatch, capability, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    has_formats = cuda.formats(torch.device("cuda", 0))
    assert [name in has_formats for name in ("tf32", "bf16", "fp16")] == [has, has, True]


def test_no_device_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match=r"topology\.device=cpu"):
        open_device(spec(), rank=0, local_rank=0)


def test_the_cpu_moves_nothing_and_has_no_cuda_facts():
    device = Cpu()
    batch = ([1], {"x": 2})
    assert device.load(device.stage(batch)) is batch
    assert device.peak_bytes() > 2**20
    assert set(device.facts().values()) == {None}
    assert {"cuda", "nccl", "device_name", "compute_capability", "device_uuid"} <= set(device.facts())


def test_the_peak_of_a_stretch_is_what_it_held_and_not_what_came_before():
    device = Cpu()
    block = torch.ones(64 * 2**20 // 4)
    high = device.peak_bytes()
    del block
    device.reset_peak()
    assert device.peak_bytes() <= high
    assert device.peak_bytes() > 10 * 2**20  # the process itself
    assert device.foreign_bytes() is None
