"""NVML's own Python binding over a library that is not there: names and arguments, which the fake cannot show."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from scaling.hardware import nvml as module
from scaling.hardware.nvml import REASONS, Gpus

pynvml = pytest.importorskip("pynvml")

SUCCESS, TIMEOUT = 0, 10  # nvml.h, nvmlReturn_t
PASSED = (
    int,
    bytes,
    type(None),
    ctypes._SimpleCData,
    ctypes.Structure,
    ctypes.Array,
    ctypes._Pointer,
    type(ctypes.byref(ctypes.c_int())),
)
"""What ctypes hands on to a function whose arguments were not declared."""


@pytest.fixture
def library(monkeypatch):
    """Two devices of which every figure is 0; what the binding calls is noted."""
    called = set()

    def pointer(name):
        def call(*arguments):
            called.add(name)
            assert all(isinstance(argument, PASSED) for argument in arguments), (name, arguments)
            if name == "nvmlDeviceGetCount_v2":
                arguments[0]._obj.value = 2
            return TIMEOUT if name == "nvmlEventSetWait_v2" else SUCCESS

        return call

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", pointer)
    return called


def test_the_binding_takes_every_call(library):
    gpus = Gpus(pynvml)
    first, second = gpus.facts()
    assert (first["peers"], second["peers"]) == ([None, True], [True, None])
    assert first["nvlinks"] == [False] * pynvml.NVML_NVLINK_MAX_LINKS
    for sample in gpus.sample():
        assert (sample["reasons"], sample["sm_mhz"], sample["pcie_width"]) == (0, 0, 0)
    assert "nvmlDeviceGetP2PStatus" in library
    assert "nvmlEventSetWait_v2" in library


def test_the_fake_stands_for_what_the_binding_has(fake_nvml):
    """A name that only one of the two has would be found out on a device alone."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r'(?:nvml\.|")(nvml[A-Z]\w+|NVML_\w+)', source)) - {"nvmlInit"}
    assert len(used) > 30
    nvml = fake_nvml(1)
    assert {name for name in used if not hasattr(pynvml, name)} == set()
    assert {name for name in used if not hasattr(nvml, name)} == set()
    constants = {name for name in used if name.startswith("NVML_")}
    assert {n: getattr(nvml, n) for n in constants} == {n: getattr(pynvml, n) for n in constants}


def test_bits_of_the_reasons():
    names = {
        "idle": "GpuIdle",
        "application_clocks": "ApplicationsClocksSetting",
        "power_cap": "SwPowerCap",
        "hw_slowdown": "HwSlowdown",
        "sync_boost": "SyncBoost",
        "sw_thermal": "SwThermalSlowdown",
        "hw_thermal": "HwThermalSlowdown",
        "hw_power_brake": "HwPowerBrakeSlowdown",
        "display_clocks": "DisplayClockSetting",
    }
    assert {
        ours: getattr(pynvml, f"nvmlClocksThrottleReason{theirs}") for ours, theirs in names.items()
    } == REASONS
