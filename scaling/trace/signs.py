"""What an event is, from its name: communication, compute or a copy; which collective; which phase of a step.

Communication is recognised by any of four signs, since names change from release to release: the kernel's
name, the collective it says it belongs to (`Collective name`), the host's annotation that it was launched
under (`nccl:all_reduce`), and a stream on which nothing but communication runs. What only the last two
signs tell is counted as communication *and named*, so that nobody has to trust a guess unseen.
"""

from __future__ import annotations

import re
from functools import lru_cache

COMPUTE, COMMUNICATION, COPY, OTHER = range(4)
"""Kinds of GPU events. OTHER is no work: what a stream or an event waits for."""

KERNELS = frozenset({"kernel", "Kernel", "mtia_ccp_events"})
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "gpu_mem_copy"})
RUNTIME = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
)
OPERATORS = frozenset({"cpu_op", "Operator"})
ANNOTATIONS = frozenset({"user_annotation"})

FORWARD, BACKWARD, OPTIMIZER, INPUT, CALL, STEP = range(6)
"""Roles of host events; CALL hands a collective to its backend or waits for it."""

_COLLECTIVES = (
    ("all_reduce", r"all_?reduce|reduce_?all|cross_device_reduce|(one|two)_shot"),
    ("all_gather", r"all_?gather"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_to_all", r"all_?to_?all|alltoall"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send|recv|p2p"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
)
_WHICH = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _COLLECTIVES)
_LIBRARY = re.compile(
    r"nccl|rccl|oneccl|\bccl_|msccl|nvshmem|hcclk?ernel|(?:^|::|\b)deep_ep\b|multimem_(?:all|one_shot)"
    r"|cross_device_reduce|(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*_?kernel"
    r"|(?:one|two)_shot_all_reduce|symm_mem",
    re.IGNORECASE,
)
_OF_TORCH = re.compile(r"\bat::|\bc10::|at_cuda_detail|\bcub::|\bthrust::|cutlass|cublas|cudnn|gemm|triton_")
_COPY = re.compile(r"^(Memcpy|Memset|Copy(Host|Device)|Fill)")
_ON_HOST = ("gloo:", "mpi:", "ucc:")
_BACKENDS = (*_ON_HOST, "nccl:", "xccl:", "rccl:")
_HANDING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms")
NAMES = 4096
"""So many are remembered, for they come again in every file."""
UNKNOWN = "unknown"
"""A collective that no sign gives a name to."""


@lru_cache(maxsize=NAMES)
def kernel_kind(name: str) -> int:
    """Kind of a GPU event by its name alone."""
    if _COPY.match(name):
        return COPY
    return COMMUNICATION if _LIBRARY.search(name) and not name.startswith("void at::native") else COMPUTE


@lru_cache(maxsize=NAMES)
def of_torch(name: str) -> bool:
    """Whether a kernel's name says that it computes, so that no weaker sign is asked."""
    return _OF_TORCH.search(name) is not None


@lru_cache(maxsize=NAMES)
def collective_of(name: str) -> str:
    """The collective that a name speaks of, in torch's words; `unknown` where it speaks of none."""
    plain = name.split("(", maxsplit=1)[0]
    return next((known for known, pattern in _WHICH if pattern.search(plain)), UNKNOWN)


def annotated(name: str) -> bool:
    """Whether a host annotation stands for a collective of a backend (`gloo:all_reduce`)."""
    return name.startswith(_BACKENDS)


def on_host(name: str) -> bool:
    """Whether such an annotation lasts as long as its collective: those of devices end once it is enqueued."""
    return name.startswith(_ON_HOST)


def role(name: str) -> int:
    """What the host is doing while an event of this name lasts."""
    if name.startswith("autograd::engine::evaluate_function"):
        return BACKWARD
    if name.startswith(("Optimizer.", "optimizer.")):
        return OPTIMIZER
    if "DataLoader" in name and "__next__" in name:
        return INPUT
    if name.startswith("ProfilerStep"):
        return STEP
    if name.startswith(_HANDING) or annotated(name):
        return CALL
    return FORWARD


_ELEMENT_BYTES = {
    **dict.fromkeys(("float", "float32", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "float64", "long", "long int", "int64", "uint64"), 8),
    **dict.fromkeys(
        ("half", "float16", "bfloat16", "c10::half", "c10::bfloat16", "short", "short int", "int16"), 2
    ),
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}


def element_bytes(dtype: str) -> int | None:
    """Bytes of an element of a type as torch or Kineto name it; None for other names."""
    return _ELEMENT_BYTES.get(dtype.lower())
