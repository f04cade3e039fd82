"""Read GPUs through NVML. What a device or driver does not support is None, never 0 and never an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

REASONS = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Bits that say why the clocks are not higher (nvml.h, nvmlClocksEventReason*)."""


def open_nvml() -> Any | None:
    """NVML, initialised; None where the driver or the binding is missing."""
    try:
        import pynvml as binding  # noqa: PLC0415  # a worker's host needs torch and the standard library only
    except ImportError:
        return None
    pynvml: Any = binding  # it carries no types
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class Gpus:
    """All GPUs of this host."""

    def __init__(self, nvml: Any) -> None:
        """`nvml` is the initialised pynvml module, or a replacement for it."""
        self._nvml = nvml
        count = self._ask(nvml.nvmlDeviceGetCount) or 0
        opened = [self._open(index) for index in range(count)]
        self._handles = [handle for handle, _ in opened]
        self._lost = [why for _, why in opened]
        self._xids: list[int | None] = [None] * count
        self._events = self._register()

    def facts(self) -> list[dict[str, Any]]:
        """What does not change while a launch runs, an object for each device."""
        return [self._facts(index, handle) for index, handle in enumerate(self._handles)]

    def sample(self) -> list[dict[str, Any]]:
        """What changes, an object for each device."""
        self._note_xids()
        return [self._sample(index, handle) for index, handle in enumerate(self._handles)]

    def _facts(self, index: int, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
        mig = ask(nvml.nvmlDeviceGetMigMode, handle)
        ecc = ask(nvml.nvmlDeviceGetEccMode, handle)
        return {
            "index": index,
            "lost": self._lost[index],
            "uuid": _text(ask(nvml.nvmlDeviceGetUUID, handle)),
            "name": _text(ask(nvml.nvmlDeviceGetName, handle)),
            "pci": None if pci is None else _text(pci.busId).lower()[-12:],
            "driver": _text(ask(nvml.nvmlSystemGetDriverVersion)),
            "vbios": _text(ask(nvml.nvmlDeviceGetVbiosVersion, handle)),
            "persistence": _as(bool, ask(nvml.nvmlDeviceGetPersistenceMode, handle)),
            "mig": None if mig is None else bool(mig[0]),
            "ecc": None if ecc is None else bool(ecc[0]),
            "ecc_pending": None if ecc is None else bool(ecc[1]),
            # NVML gives (correctable, uncorrectable, pending, failed).
            "remap_failed": _as(lambda rows: bool(rows[3]), ask(nvml.nvmlDeviceGetRemappedRows, handle)),
            "power_limit_mw": ask(nvml.nvmlDeviceGetPowerManagementLimit, handle),
            "power_default_mw": ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
            "sm_max_mhz": ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "sm_application_mhz": ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM),
            "sm_application_default_mhz": ask(
                nvml.nvmlDeviceGetDefaultApplicationsClock, handle, nvml.NVML_CLOCK_SM
            ),
            "pcie_max_generation": ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "pcie_max_width": ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            "nvlinks": self._nvlinks(handle),
        }

    def _sample(self, index: int, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        utilisation = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "sm_mhz": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "reasons": self._reasons(handle),
            "power_mw": ask(nvml.nvmlDeviceGetPowerUsage, handle),
            "temperature_c": ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "utilisation_percent": None if utilisation is None else int(utilisation.gpu),
            "processes": _as(len, ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)),
            "pcie_generation": ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            "pcie_width": ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            "ecc_uncorrected": ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            "xid": self._xids[index],
        }

    def _open(self, index: int) -> tuple[Any | None, str | None]:
        """A device's handle, or NVML's error; a device without a handle keeps its number."""
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index), None
        except self._nvml.NVMLError as error:
            return None, str(error)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call NVML; None where the device is lost or lacks it, or where the driver is too old for it."""
        if any(argument is None for argument in arguments):  # the handle of a lost device
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    def _reasons(self, handle: Any) -> int | None:
        """Why the clocks are not higher. Older drivers know only the second name, which CUDA 14 removes."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            function = getattr(self._nvml, name, None)
            reasons: int | None = None if function is None else self._ask(function, handle)
            if reasons is not None:
                return reasons
        return None

    def _nvlinks(self, handle: Any) -> list[bool] | None:
        """Whether each NVLink is up; None where the device has none."""
        states = [
            self._ask(self._nvml.nvmlDeviceGetNvLinkState, handle, link)
            for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
        ]
        return [bool(state) for state in states if state is not None] or None

    def _register(self) -> Any | None:
        """Subscribe to critical Xids, where the driver supports that."""
        events = self._ask(self._nvml.nvmlEventSetCreate)
        if events is not None:
            for handle in self._handles:
                kind = self._nvml.nvmlEventTypeXidCriticalError
                self._ask(self._nvml.nvmlDeviceRegisterEvents, handle, kind, events)
        return events

    def _note_xids(self) -> None:
        while self._events is not None:
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # a timeout: nothing happened
                return
            for index, handle in enumerate(self._handles):
                if self._same(handle, event.device):
                    self._xids[index] = int(event.eventData)

    def _same(self, a: Any, b: Any) -> bool:
        uuid = self._ask(self._nvml.nvmlDeviceGetUUID, a)
        return a is b or (uuid is not None and uuid == self._ask(self._nvml.nvmlDeviceGetUUID, b))


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the REASONS whose bits are set."""
    return tuple(name for name, bit in REASONS.items() if bits & bit)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _as(convert: Callable[[Any], T], value: Any) -> T | None:
    """A value of NVML, converted; None where it has none."""
    return None if value is None else convert(value)
