"""Number formats: the switches of the whole process, and the autocast and scaler of each loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from scaling.worker.accelerator.cuda import set_tf32

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, tf32, bf16 or fp16 on one type of device. Parameters and gradients stay in fp32."""

    def __init__(self, name: str, device_type: str) -> None:
        self._name = name
        self._device_type = device_type
        set_tf32(name == "tf32")

    @property
    def autocast(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Context in which a forward runs."""
        if self._name in DTYPES:
            return functools.partial(torch.autocast, self._device_type, dtype=DTYPES[self._name])
        return contextlib.nullcontext

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
