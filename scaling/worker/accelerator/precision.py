"""Number formats: the switches of the whole process, and the autocast and scaler of each loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_tf32() -> bool:
    """Whether CUDA computes fp32 matrix products in TF32, by either of torch's switches."""
    return _tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def cudnn_tf32() -> bool:
    """Whether cuDNN computes fp32 convolutions in TF32; torch's new switch has another setting for recurrent layers."""
    return _tf32(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None))


def _tf32(old: Any, new: Any) -> bool:
    """The setting in effect, from `new`, or from `old` where torch has no `new`.

    If the new switch was set, torch raises RuntimeError when the old one is read.
    """
    found = getattr(new, "fp32_precision", None)
    return bool(old.allow_tf32) if found is None else found == "tf32"


class Precision:
    """fp32, tf32, bf16 or fp16 on one type of device. Parameters and gradients stay in fp32."""

    def __init__(self, name: str, device_type: str) -> None:
        self._name = name
        self._device_type = device_type
        # Set both: torch's default is on for convolutions and off for matrix products.
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        torch.backends.cudnn.allow_tf32 = name == "tf32"

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
