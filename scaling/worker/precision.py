"""Number formats: what a precision switches on for the whole process, and what each loop needs of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_tf32() -> bool:
    """Whether CUDA's matrix products of fp32 are TF32's, by whichever switch that was set."""
    return _tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def cudnn_tf32() -> bool:
    """Whether cuDNN's convolutions of fp32 are TF32's; torch's new switch can set recurrent layers apart."""
    return _tf32(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None))


def _tf32(old: Any, new: Any) -> bool:
    """Of `new`, what is in effect; of `old` where torch has no `new`.

    Where the new switch was set, torch refuses to tell the old one (RuntimeError: a mix of the two).
    """
    found = getattr(new, "fp32_precision", None)
    return bool(old.allow_tf32) if found is None else found == "tf32"


class Precision:
    """fp32, tf32, bf16 or fp16 on one type of device. Parameters and gradients stay in fp32."""

    def __init__(self, name: str, device_type: str) -> None:
        self._name = name
        self._device_type = device_type
        # Said either way: torch's own default for convolutions is on, for matrix products off.
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        torch.backends.cudnn.allow_tf32 = name == "tf32"

    @property
    def autocast(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """What a forward runs in."""
        if self._name in DTYPES:
            return functools.partial(torch.autocast, self._device_type, dtype=DTYPES[self._name])
        return contextlib.nullcontext

    def scaler(self) -> torch.amp.GradScaler:
        """Keeps fp16 gradients in range; passes everything through in other precisions.

        Each loop needs its own: a bare step can overflow on one rank alone, and ranks whose
        gradients are summed must scale alike. Its step reads one flag back to the host, the wait
        that fp16 training has anyway.
        """
        return torch.amp.GradScaler(self._device_type, enabled=self._name == "fp16")
