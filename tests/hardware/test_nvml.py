"""What is read of a device, and what is not there.

NVML's own Python binding over a library that is not there: names and arguments, which the fake cannot show.
"""

import ctypes
import re
from pathlib import Path

import pytest

from scaling.hardware import nvml as module
from scaling.hardware.nvml import REASONS, Gpus, reasons_of


def test_facts_and_samples_of_every_device(fake_nvml):
    nvml = fake_nvml(2)
    gpus = Gpus(nvml)
    first, second = gpus.facts()
    assert (first["pci"], second["pci"]) == ("0000:10:00.0", "0000:11:00.0")
    assert first["nvlinks"] == [True] * 4
    sample = gpus.sample()[1]
    assert (sample["pcie_width"], sample["sm_mhz"], sample["memory_used_bytes"]) == (16, 1900, 2**30)


def test_a_field_that_a_device_lacks_is_none_and_the_rest_is_there(fake_nvml):
    nvml = fake_nvml(1)
    nvml.gpus[0].lacks |= {"Temperature", "NvLinkState", "MigMode", "EccMode"}
    gpus = Gpus(nvml)
    facts, sample = gpus.facts()[0], gpus.sample()[0]
    assert [facts[key] for key in ("nvlinks", "mig", "ecc")] == [None] * 3
    assert sample["temperature_c"] is None
    assert sample["power_mw"] == 650_000


def test_an_older_driver_tells_its_reasons_by_their_older_name(fake_nvml):
    nvml = fake_nvml(1)
    nvml.gpus[0].lacks.add("CurrentClocksEventReasons")
    nvml.gpus[0].reasons = 0x40
    assert Gpus(nvml).sample()[0]["reasons"] == 0x40


def test_an_xid_stays_with_its_device(fake_nvml):
    nvml = fake_nvml(2)
    gpus = Gpus(nvml)
    assert [s["xid"] for s in gpus.sample()] == [None, None]
    nvml.xids = [(1, 79)]
    assert [s["xid"] for s in gpus.sample()] == [None, 79]
    assert [s["xid"] for s in gpus.sample()] == [None, 79]


def test_a_device_that_falls_off_leaves_nones(fake_nvml):
    nvml = fake_nvml(1)
    gpus = Gpus(nvml)
    nvml.gpus[0].lacks |= nvml.questions()
    sample = gpus.sample()[0]
    assert {key for key, value in sample.items() if value is not None} == set()


def test_names_of_reasons():
    assert reasons_of(0x4 | 0x40) == ("power_cap", "hw_thermal")


def test_a_device_that_cannot_be_opened_keeps_its_place_and_says_why(fake_nvml):
    nvml = fake_nvml(3)
    nvml.gpus[1].lacks.add("HandleByIndex")
    gpus = Gpus(nvml)
    facts, samples = gpus.facts(), gpus.sample()
    assert [f["index"] for f in facts] == [0, 1, 2]
    assert [f["lost"] for f in facts] == [None, "GPU is lost", None]
    assert [s["sm_mhz"] for s in samples] == [1900, None, 1900]
    nvml.xids = [(2, 13)]
    assert [s["xid"] for s in gpus.sample()] == [None, None, 13]


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
    first, _ = gpus.facts()
    assert first["nvlinks"] == [False] * pynvml.NVML_NVLINK_MAX_LINKS
    for sample in gpus.sample():
        assert (sample["reasons"], sample["sm_mhz"], sample["pcie_width"]) == (0, 0, 0)
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
