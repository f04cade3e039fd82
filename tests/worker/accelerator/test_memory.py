"""A limit that is real: in processes of their own, since what a process has allocated stays with it."""

import sys

import pytest
import torch
from support.processes import captured

from scaling.worker.accelerator.memory import is_out_of_memory

HEAD = """
import torch
from scaling.worker.accelerator.memory import CpuLimit, held_bytes, is_out_of_memory
torch.set_num_threads(1)
torch.ones(8).sum()
MIB = 2**20
"""


def run(source):
    done = captured([sys.executable, "-c", HEAD + source], timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_allocation_beyond_the_limit_fails_at_once_and_one_below_does_not():
    said = run("""
limit = CpuLimit(held_bytes() + 200 * MIB)
limit.begin()
with limit.on():
    kept = torch.zeros(100 * MIB, dtype=torch.uint8)
    try:
        torch.zeros(150 * MIB, dtype=torch.uint8)
        print("fitted")
    except RuntimeError as error:
        print(is_out_of_memory(error))
print(torch.zeros(300 * MIB, dtype=torch.uint8).numel() // MIB)  # outside there is no limit
""")
    assert said == ["True", "300"]


@pytest.mark.slow
def test_what_fits_does_not_depend_on_what_was_tried_before():
    said = run("""
limit = CpuLimit(held_bytes() + 200 * MIB)
limit.begin()
def fits(size):
    try:
        with limit.on():
            parts = [torch.zeros(size * MIB // 8, dtype=torch.uint8) for _ in range(8)]
        return True
    except RuntimeError as error:
        assert is_out_of_memory(error)
        return False
print(*[int(fits(size)) for size in (190, 210, 100, 190, 210, 190)])
""")
    assert said == ["1", "0", "1", "1", "0", "1"]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (
            RuntimeError(
                "NCCL error: unhandled cuda error. Last error: Failed to CUDA calloc async 608 bytes"
            ),
            True,
        ),
        (RuntimeError("NCCL WARN Cuda failure 'out of memory'"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, memory):
    assert is_out_of_memory(error) is memory


STEPS = """
import resource
from scaling.worker.accelerator.memory import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    kept = [torch.ones(3 * MIB, dtype=torch.uint8) for _ in range(8)]
    return len(kept)

for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


def test_steps_take_their_memory_where_the_one_before_left_it():
    (kept,) = run(STEPS.replace("for _ in range(3)", "keep_freed()\nfor _ in range(3)"))
    (without,) = run("import os, ctypes\nctypes.CDLL(None).mallopt(-3, 2**20)\n" + STEPS)
    assert int(kept) < 100 < int(without)
