"""What the program needs of the device of a rank, and the CPU as one.

Number formats: the switches of the whole process, and the autocast and scaler of each loop.
"""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from scaling.errors import let_go
from scaling.worker.accelerator import memory
from scaling.worker.accelerator.clock import Clock, HostClock, sleep
from scaling.worker.accelerator.cuda import set_tf32


class Accelerator:
    """The device of a rank: its clock, its memory, how data come to it, and facts of it.

    Each method does what the host needs, where data need no transfer and work is done when a call returns. A device's
    class replaces it.
    """

    type: str
    torch_device: torch.device
    clock: Clock

    def stage(self, batch: Any) -> Any:
        """Prepare a batch on the host, as a loader does."""
        return batch

    def load(self, batch: Any) -> Any:
        """Bring the batch to the module's device, in the input phase of a step."""
        return batch

    def synchronize(self) -> None:
        """Wait until all issued work is done."""

    def stall(self, seconds: float) -> None:
        """Be late by so much. Only a simulated device can be made late itself; elsewhere it is the host."""
        sleep(seconds)

    def spin(self, seconds: float) -> None:
        """Queue one kernel of few threads that takes about so long; an accelerator alone can."""
        raise NotImplementedError

    def only_timed(self) -> contextlib.AbstractContextManager[None]:
        """Inside, nobody reads results: a simulated device need not compute what its model of time does not ask for."""
        return contextlib.nullcontext()

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Around a wait for other ranks on the host, in which this one starts nothing on its device."""
        return contextlib.nullcontext()

    def barrier(self, group: Any) -> None:
        """Wait for the ranks of a control group, on the host."""
        dist.barrier(group)

    def release_memory(self) -> None:
        """Return cached memory, as after an attempt that ran out of memory."""
        memory.collect()

    def peak_bytes(self) -> int:
        """Largest memory since `reset_peak`: of tensors on the device, or resident memory of the process on a CPU."""
        return memory.status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def held_bytes(self) -> int | None:
        """Memory that tensors hold on the device; None where that is the process' memory."""
        return None

    def foreign_bytes(self) -> int | None:
        """Device memory outside torch's allocator, mainly communicators; None where nobody tells."""
        return None

    def reset_peak(self) -> None:
        """Count the peak from now on, on a CPU if the kernel allows it (proc(5), clear_refs)."""
        with let_go(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def limit(self, limit: int | None, *, margin: float = 0.0) -> memory.Limit:
        """A limit of this rank's memory of `limit` bytes less `margin`, a fraction; None: the device's own."""
        return memory.Limit() if limit is None else memory.CpuLimit(int(limit * (1 - margin)))

    def formats(self) -> tuple[str, ...]:
        """Number formats of the device, the reference first."""
        return ("fp64", "fp32", "bf16", "fp16")

    def random_state(self) -> tuple[torch.Tensor, ...]:
        """State of every default generator that a step may draw from; `set_random_state` restores it."""
        return (torch.get_rng_state(),)

    def set_random_state(self, states: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(states[0])

    def peer_access(self, local_rank: int) -> bool | None:  # noqa: ARG002
        """Whether this device can access another one's memory directly; None where that does not apply."""
        return None

    def facts(self) -> dict[str, Any]:
        """Facts of the device and its libraries; null where there are none."""
        return dict.fromkeys(FACTS)


FACTS = (
    "cuda",
    "nccl",
    "device_name",
    "device_memory_bytes",
    "compute_capability",
    "device_uuid",
    "device_pci",
)


class Cpu(Accelerator):
    """The host's processors."""

    type = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.clock = HostClock()


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, tf32, bf16 or fp16 on one type of device. Parameters and gradients stay in fp32."""

    def __init__(self, name: str, device_type: str) -> None:
        self._name, self._device_type = name, device_type
        set_tf32(name == "tf32")
        self.autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        """Context in which a forward runs."""
        if name in DTYPES:
            self.autocast = functools.partial(torch.autocast, device_type, dtype=DTYPES[name])

    def scaler(self) -> torch.amp.GradScaler:
        """A scaler that keeps fp16 gradients in range; in other precisions it does nothing.

        Each loop needs its own scaler: a bare step can overflow on one rank alone, but ranks whose gradients are summed
        must use the same scale. Its step reads one flag back to the host, a wait that fp16 training always has.
        """
        return Scaler(self._device_type, enabled=self._name == "fp16")


class Scaler(torch.amp.GradScaler):
    """torch's scaler, for gradients on several meshes too.

    torch's own looks at all gradients of a device in one call, which refuses tensors and DTensors together, and shares
    an overflow over the mesh of the first alone.
    """

    def _unscale_grads_(self, optimizer: Any, *settings: Any) -> dict[torch.device, torch.Tensor]:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        flags: dict[torch.device, torch.Tensor] = {}
        for alike in meshes(parameters):
            part: Any = SimpleNamespace(param_groups=[{"params": alike}])
            for device, overflow in super()._unscale_grads_(part, *settings).items():
                flags[device] = torch.maximum(overflow, flags[device]) if device in flags else overflow
        return flags


def meshes(parameters: Iterable[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters by the mesh that they are divided over; those of no mesh are together."""
    groups: dict[int, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(id(getattr(parameter, "device_mesh", None)), []).append(parameter)
    return list(groups.values())
