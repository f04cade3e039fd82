"""What a machine has, with an NVML that stands in for the driver's.

Peaks by the names that drivers give their devices.
"""

import sys

import pytest

from scaling.hardware.devices import find_machine, peak_flop_s


@pytest.fixture
def nvml(fake_nvml, monkeypatch):
    """Four GPUs, and a machine that has a driver for them."""
    found = fake_nvml(4)
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr("scaling.hardware.devices.os.path.exists", lambda _: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def test_every_device_with_its_capability(nvml):
    assert [(gpu.name, gpu.capability) for gpu in find_machine().gpus] == [("Fake H100", (9, 0))] * 4


def test_a_device_that_fell_off_the_bus_is_left_out(nvml):
    nvml.gpus[1].lacks.add("HandleByIndex")  # gone before
    nvml.gpus[2].lacks.add("Name")  # gone in between
    assert len(find_machine().gpus) == 2


def test_only_the_devices_that_are_visible_count(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert len(find_machine().gpus) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_machine().gpus == ()


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla T4", "fp32", 8.1),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA A10", "fp32", 31.2),
        ("NVIDIA L40S", "fp16", 362),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "fp64", 51),
        ("NVIDIA H200", "fp32", 67),
        ("NVIDIA B200", "bf16", 2250),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_a_known_device(name, precision, tera):
    assert peak_flop_s(name, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("AMD EPYC", "fp32"),
        ("", "fp32"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16"),
        ("NVIDIA A10G", "fp32"),
        ("Tesla T4", "bf16"),
        ("Tesla V100-SXM2-16GB", "tf32"),
    ],
)
def test_what_is_not_known_is_not_guessed(name, precision):
    assert peak_flop_s(name, precision) is None
