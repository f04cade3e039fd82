"""NVML of a node that does not exist: as many GPUs as asked for, healthy unless something is changed.

`node.gpus[i].width = 8` and the like make a fault; `del`-ing is done by `node.gpus[i].lacks.add("Temperature")`,
after which everything of that name raises NVMLError, as NVML does for what a device does not have; `HandleByIndex`:
the device fell off the bus.
"""

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class FakeGpu:
    def __init__(self, index: int) -> None:
        self.index = index
        self.driver = "570.86.15"
        self.generation = self.max_generation = 5
        self.width = self.max_width = 16
        self.links = [True] * 4
        self.sm_mhz, self.sm_max_mhz = 1900, 1980
        self.sm_application_mhz = self.sm_application_default_mhz = 1980
        self.reasons = 0
        self.persistence, self.mig, self.ecc = 1, [0, 0], [1, 1]
        self.power_limit = self.power_default = 700_000
        self.utilisation = 97
        self.ecc_uncorrected = 0
        self.processes = 1
        self.lacks: set[str] = set()

    @property
    def uuid(self) -> str:
        return f"GPU-0000-{self.index:04d}"


ATTRIBUTES = {
    "UUID": "uuid",
    "PersistenceMode": "persistence",
    "MigMode": "mig",
    "EccMode": "ecc",
    "PowerManagementLimit": "power_limit",
    "PowerManagementDefaultLimit": "power_default",
    "MaxPcieLinkGeneration": "max_generation",
    "MaxPcieLinkWidth": "max_width",
    "CurrPcieLinkGeneration": "generation",
    "CurrPcieLinkWidth": "width",
    "CurrentClocksEventReasons": "reasons",
    "CurrentClocksThrottleReasons": "reasons",
    "ApplicationsClock": "sm_application_mhz",
    "DefaultApplicationsClock": "sm_application_default_mhz",
    "TotalEccErrors": "ecc_uncorrected",
}
"""nvmlDeviceGet<key> of a device returns this attribute of its FakeGpu."""
CONSTANTS = {
    "Name": "Fake H100",
    "CudaComputeCapability": (9, 0),
    "VbiosVersion": "96.00",
    "RemappedRows": (0, 0, 0, 0),
    "PowerUsage": 650_000,
    "Temperature": 60,
}
"""nvmlDeviceGet<key> returns this for every device."""


class FakeNvml:
    """The functions that are used of the pynvml module, over a list of devices."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_NVLINK_MAX_LINKS = 36
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, count: int = 4) -> None:
        self.gpus = [FakeGpu(i) for i in range(count)]
        self.xids: list[tuple[int, int]] = []

    def __getattr__(self, name: str):
        """nvmlDeviceGet<What>(handle, ...): from a table above, else by _<what>; refused where the device lacks it."""
        what = name.removeprefix("nvmlDeviceGet")
        method = self.__class__.__dict__.get(f"_{what}")
        if what == name or not (what in ATTRIBUTES or what in CONSTANTS or method):
            raise AttributeError(name)

        def call(handle, *arguments):
            if what in handle.lacks:
                raise NVMLError(name)
            if what in ATTRIBUTES:
                return getattr(handle, ATTRIBUTES[what])
            return CONSTANTS[what] if what in CONSTANTS else method(self, handle, *arguments)

        return call

    def questions(self) -> set[str]:
        """All that a device can be asked for, and can lack."""
        methods = {name[1:] for name in vars(FakeNvml) if name[0] == "_" and name[1].isupper()}
        return {*ATTRIBUTES, *CONSTANTS, *methods}

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if "HandleByIndex" in self.gpus[index].lacks:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlSystemGetDriverVersion(self):
        return self.gpus[0].driver

    def nvmlEventSetCreate(self):
        return object()

    def nvmlDeviceRegisterEvents(self, handle, kind, events):
        pass

    def nvmlEventSetWait_v2(self, events, timeout):
        if not self.xids:
            raise NVMLError("timeout")
        index, xid = self.xids.pop(0)
        return SimpleNamespace(device=self.gpus[index], eventData=xid)

    def _PciInfo(self, gpu):
        return SimpleNamespace(busId=f"00000000:{0x10 + gpu.index:02X}:00.0")

    def _MemoryInfo(self, gpu):
        return SimpleNamespace(total=80 * 2**30, used=2**30)

    def _MaxClockInfo(self, gpu, kind):
        return gpu.sm_max_mhz if kind == self.NVML_CLOCK_SM else 2600

    def _ClockInfo(self, gpu, kind):
        return gpu.sm_mhz if kind == self.NVML_CLOCK_SM else 2600

    def _NvLinkState(self, gpu, link):
        if link >= len(gpu.links):
            raise NVMLError("not supported")
        return int(gpu.links[link])

    def _UtilizationRates(self, gpu):
        return SimpleNamespace(gpu=gpu.utilisation)

    def _ComputeRunningProcesses(self, gpu):
        return [object()] * gpu.processes
