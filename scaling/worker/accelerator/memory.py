"""Limit the memory of a rank, and recognise errors that mean it ran out of memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Exception classes for it. Torch has none for the CPU; see `is_out_of_memory`."""

_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "bad_alloc",
    "could not create a memory",
    "could not create a primitive",  # oneDNN, where its scratch memory cannot be had
    "ALLOC_FAILED",  # cuBLAS, cuDNN
    "Failed to CUDA calloc",  # NCCL, where a communicator's buffers cannot be had
)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, HEAP_BYTES = 2**25, 2**30
"""Freed memory below KEPT_BYTES (the most that glibc takes) stays in the heap, which keeps HEAP_BYTES at its end."""
_OWN_BOUNDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
MMAP_BYTES = 2**20
"""Under a limit, allocations of this size or more return to the system when they are freed."""


def keep_freed() -> None:
    """Let every step take its memory where the one before left it, unless the environment sets bounds of its own.

    By default glibc returns what lies free at the end of its heap, and whether anything does depends on what else lies
    there: a wrapper's buckets, or what an earlier block left. Memory that is asked for again comes as cleared pages,
    which took the demo's model 10 to 34 ms of a step of 50 ms. That differed from block to block and was taken for a
    cost of DDP. glibc raises its bounds itself once large arrays were freed (mallopt(3)), as in most trainings.
    """
    if any(os.environ.get(name) for name in _OWN_BOUNDS):
        return
    allocator = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc only
        allocator.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        allocator.mallopt(_M_TRIM_THRESHOLD, HEAP_BYTES)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out. On the CPU only its text tells."""
    if isinstance(error, OUT_OF_MEMORY):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


class Limit:
    """What the system limits anyhow."""

    def begin(self) -> None:
        """Note what there is before the first try."""

    def on(self) -> contextlib.AbstractContextManager[None]:
        """Limit memory inside; outside there is room to report."""
        return contextlib.nullcontext()


class CpuLimit(Limit):
    """A limit on this process's private writable memory: RLIMIT_DATA, the same as `ulimit -d`.

    An allocation beyond it fails at once in the rank that made it, as on a GPU. Resident memory cannot be limited that
    way (RLIMIT_RSS does nothing), and a cgroup's limit kills the process. Thread stacks and the heap count; library
    code, which ranks share, does not.

    glibc keeps freed blocks, and their size depends on what was freed before, so what fits would depend on what was
    tried before. With a limit, blocks of MMAP_BYTES or more are therefore returned at once.
    """

    def __init__(self, limit: int) -> None:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        self._limit = limit
        self._before_bytes: int | None = None

    def begin(self) -> None:
        """Note what a fresh process holds. Memory that is left over later does not count against the limit."""
        collect()
        self._before_bytes = held_bytes()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Set the limit above what this process holds now; the one before stands again outside."""
        left = 0 if self._before_bytes is None else max(0, held_bytes() - self._before_bytes)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = self._limit + left
        resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class DeviceLimit(Limit):
    """Limits the caching allocator to a share of the device's memory; None: all of it."""

    def __init__(self, limit: int | None, module: Any, device: torch.device, margin: float) -> None:
        """`module`: that of the device's type. RuntimeError where it cannot limit its allocator."""
        total = int(module.mem_get_info(device)[1])
        share = min(1.0, (total if limit is None else limit) * (1 - margin) / total)
        limited = getattr(module, "set_per_process_memory_fraction", None)
        if limited is not None:
            limited(share, device)
        elif share < 1.0:
            raise RuntimeError(
                f"memory_limit: torch cannot limit the memory of a device of type {device.type}"
            )


def status_bytes(name: str) -> int:
    """A size in /proc/self/status, such as VmHWM (the largest resident memory); 0 where the kernel does not tell."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def held_bytes() -> int:
    """Memory of this process that RLIMIT_DATA counts."""
    return status_bytes("VmData")


def collect() -> None:
    """Collect garbage and return free memory to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
