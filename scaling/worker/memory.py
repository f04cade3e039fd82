"""Running out of memory as an answer: a limit that is real, and what counts as having reached it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import torch

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Where memory has a class of its own; on the CPU torch has none, see `is_out_of_memory`."""

_SAID = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "bad_alloc",
    "could not create a memory",
    "could not create a primitive",  # oneDNN, where its scratch memory cannot be had
    "ALLOC_FAILED",  # cuBLAS, cuDNN
)
_M_MMAP_THRESHOLD = -3
MMAP_BYTES = 2**20
"""Under a limit allocations from here on go back to the system when they are freed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out. torch has a class for CUDA's; on the CPU only the text tells."""
    if isinstance(error, OUT_OF_MEMORY):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


class CpuLimit:
    """A limit of this process's private writable memory: RLIMIT_DATA, the same as `ulimit -d`.

    An allocation beyond it fails at once, cleanly, in the rank that made it, as on a GPU. Resident
    memory cannot be limited that way (RLIMIT_RSS does nothing), and a cgroup's limit kills. Thread
    stacks and the heap count; the code of libraries, which ranks share, does not.

    glibc keeps freed blocks for later; of what size depends on what was freed before, so what fits
    would depend on what was tried. With a limit, blocks from MMAP_BYTES on therefore go back at once.
    """

    def __init__(self, limit: int) -> None:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        self._limit = limit
        self._held: int | None = None

    def begin(self) -> None:
        """Everything that a fresh process would hold is there: what is left behind later does not count."""
        collect()
        self._held = held_bytes()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Limited inside; outside there is room to say what happened."""
        left = 0 if self._held is None else max(0, held_bytes() - self._held)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = self._limit + left
        resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class CudaLimit:
    """A share of the device's memory that the caching allocator keeps to; None: all there is."""

    def __init__(self, limit: int | None, device: torch.device, margin: float) -> None:
        total = torch.cuda.get_device_properties(device).total_memory
        share = min(1.0, (total if limit is None else limit) * (1 - margin) / total)
        torch.cuda.set_per_process_memory_fraction(share, device)

    def begin(self) -> None:
        """The allocator's cache is emptied between tries: nothing stays."""

    def on(self) -> contextlib.AbstractContextManager[None]:
        """It holds throughout."""
        return contextlib.nullcontext()


class NoLimit:
    """The CPU without a limit of ours: whatever the system sets is met as it comes."""

    def begin(self) -> None:
        """Nothing to note."""

    def on(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to set."""
        return contextlib.nullcontext()


Limit = CpuLimit | CudaLimit | NoLimit


def make_limit(limit: int | None, device: torch.device, *, margin: float = 0.0) -> Limit:
    """Of `limit` bytes less `margin` (a fraction)."""
    if device.type == "cuda":
        return CudaLimit(limit, device, margin)
    return NoLimit() if limit is None else CpuLimit(int(limit * (1 - margin)))


def held_bytes() -> int:
    """What RLIMIT_DATA counts of this process now: VmData."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def collect() -> None:
    """Give back to the system what nobody holds any more."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
