"""What a machine has, with an NVML that stands in for the driver's."""

from __future__ import annotations

import sys

import pytest

from scaling.hardware.devices import find_machine


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
