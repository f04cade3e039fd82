"""Number formats: the switches of the whole process, and the autocast and scaler of each loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
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
        return torch.amp.GradScaler(self._device_type, enabled=self._name == "fp16")
