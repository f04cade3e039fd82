"""What an event is: communication, compute or a copy; which collective; which phase of a step.

Communication is recognised by four signs, since names change from release to release: the kernel's name, the
collective in its arguments (`Collective name`), the host's annotation that it was launched under
(`nccl:all_reduce`), and a stream on which nothing but communication runs. What only the last two signs show is
counted as communication *and named in a warning*, so that the reader can check the guess.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.traces.profiler.columns import Call, DeviceEvents, Ints, Sent, Trace
from scaling.traces.profiler.stream import Args

COUNT_MAX = 2**53
"""Bytes, members and numbers of collectives beyond this were not counted by anything."""
COMPUTE, COMMUNICATION, COPY, OTHER = range(4)
"""Kinds of GPU events. OTHER does no work: a stream or an event waits."""

KERNELS = frozenset({"kernel", "Kernel", "mtia_ccp_events"})
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "gpu_mem_copy"})
RUNTIME = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
)
OPERATORS = frozenset({"cpu_op", "Operator"})
ANNOTATIONS = frozenset({"user_annotation"})

FORWARD, BACKWARD, OPTIMIZER, INPUT, CALL, STEP = range(6)
"""Roles of host events; CALL hands a collective to its backend or waits for it."""

_WHICH = (
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
_LIBRARY = re.compile(
    r"nccl|rccl|oneccl|\bccl_|msccl|nvshmem|hcclk?ernel|(?:^|::|\b)deep_ep\b|multimem_(?:all|one_shot)"
    r"|cross_device_reduce|(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*_?kernel"
    r"|(?:one|two)_shot_all_reduce|symm_mem",
    re.IGNORECASE,
)
_OF_TORCH = re.compile(r"\bat::|\bc10::|at_cuda_detail|\bcub::|\bthrust::|cutlass|cublas|cudnn|gemm|triton_")
_COPY = re.compile(r"^(Memcpy|Memset|Copy(HostEvents|Device)|Fill)")
_BETWEEN = re.compile(r"^(Memcpy (PtoP|P2P|DtoD)|CopyDeviceToDevice)")
_ON_HOST = ("gloo:", "mpi:", "ucc:")
_BACKENDS = (*_ON_HOST, "nccl:", "xccl:", "rccl:")
_HANDING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms")
NAMES = 4096
"""How many names are cached; the same ones come in every file."""
UNKNOWN = "unknown"
"""A collective that cannot be identified."""
FAR = 1 << 46
"""ns between two threads when their times are laid out one behind the other; 19 hours."""
_NOTHING = Sent(collective="")
_WORDS = re.compile(r'"([^"]*)"')


@lru_cache(maxsize=NAMES)
def kernel_kind(name: str) -> int:
    """Kind of a GPU event by its name alone."""
    if _COPY.match(name):
        return COPY
    return COMMUNICATION if _LIBRARY.search(name) and not name.startswith("void at::native") else COMPUTE


@lru_cache(maxsize=NAMES)
def of_torch(name: str) -> bool:
    """Whether the name shows that a kernel computes, so that weaker signs are not used."""
    return _OF_TORCH.search(name) is not None


@lru_cache(maxsize=NAMES)
def collective_of(name: str) -> str:
    """The collective in a name, as torch calls it; `unknown` where there is none."""
    plain = name.split("(", maxsplit=1)[0]
    return next((kind for kind, pattern in _WHICH if re.search(pattern, plain, re.IGNORECASE)), UNKNOWN)


def annotated(name: str) -> bool:
    """Whether a host annotation stands for a collective of a backend (`gloo:all_reduce`)."""
    return name.startswith(_BACKENDS)


def on_host(name: str) -> bool:
    """Whether the annotation lasts as long as its collective. Those of devices end once it is enqueued."""
    return name.startswith(_ON_HOST)


def role(name: str) -> int:
    """What the host does during an event of this name."""
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


def sent_of(args: Args, collective: str) -> Sent:
    """The arguments of a collective. The size is that of nccl-tests: the larger of one rank's input and output."""
    elements: float | None = None
    if args.in_elements is not None or args.out_elements is not None:
        elements = max(args.in_elements or 0, args.out_elements or 0)
    size = element_bytes(args.dtype) if args.dtype else None
    if elements is None and bytes(args.dims):
        words = _WORDS.findall(bytes(args.types).decode("utf-8", "replace"))
        elements, size = _elements(bytes(args.dims)), element_bytes(words[0]) if words else None
    return Sent(
        collective=collective,
        bytes=None if elements is None or size is None else _count(elements * size) or None,
        group=args.group or "",
        group_size=_count(args.group_size) or None,
        seq=_count(args.seq),
        inputs_only=args.out_elements is None,  # `Input Dims` has no outputs either
    )


def _count(value: float | None) -> int | None:
    """A number of something; None for one that cannot be."""
    return int(value) if value is not None and 0 <= value < COUNT_MAX else None


def _elements(dims: bytes) -> float | None:
    """Elements of all tensors of an `Input Dims`; None where it is malformed."""

    def count(shape: Any) -> float:
        if all(isinstance(n, int) for n in shape):
            return math.prod(map(float, shape)) if shape else 0.0
        return sum(count(inner) for inner in shape if isinstance(inner, list))

    try:
        shape = json.loads(dims)
        return count(shape) if isinstance(shape, list) else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def launched(trace: Trace) -> tuple[Ints, Ints]:
    """When and by which thread each event of the device was launched; -1 where unknown."""
    ids, wanted = trace.launches["correlation"], trace.gpu.correlation
    if not len(ids):
        return np.full(len(wanted), -1), np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    matches = ids[at] == wanted
    begin, thread = (np.where(matches, trace.launches[name][at], -1) for name in ("begin", "thread"))
    return begin, thread


def communication(trace: Trace, launch: Ints, thread: Ints) -> tuple[Ints, list[Sent], Ints, dict[str, int]]:
    """Kinds after the weaker signs, the arguments of each collective, which events are one, and guessed names.

    Events with equal numbers in the third are one collective: the copies between devices that carry it.
    """
    gpu, names = trace.gpu, trace.names
    kind = gpu.kind.copy()
    call = _enclosing(trace.calls, launch, thread)
    sure = kind == COMMUNICATION
    open_ = np.array([not of_torch(n) for n in names], dtype=bool)
    may = (kind == COMPUTE) & open_[gpu.name] if len(names) else kind == COMPUTE
    under = may & (call >= 0)
    lanes = _lanes(gpu, sure | under, may | sure)
    only = may & ~under & np.isin(gpu.stream, lanes)
    if only.any():  # a kernel that also runs on other streams computes here too
        elsewhere = np.zeros(len(names), dtype=bool)
        elsewhere[gpu.name[(kind == COMPUTE) & ~np.isin(gpu.stream, lanes)]] = True
        only &= ~elsewhere[gpu.name]
    kind[under | only] = COMMUNICATION
    carries, loose = _carrying(gpu, names, kind, call, lanes)
    kind[carries] = COMMUNICATION
    unit = _units(gpu, carries, call)
    guessed = Counter(names[i] for i in gpu.name[under | only | loose])
    sent: list[Sent] = [_NOTHING] * len(kind)
    for i in np.flatnonzero(kind == COMMUNICATION):
        told = trace.sent[gpu.sent[i]] if gpu.sent[i] >= 0 else None
        above = trace.calls[call[i]].sent if call[i] >= 0 else None
        by_name = Sent(collective=collective_of(names[gpu.name[i]]))
        # Point-to-point kernels also carry all_to_all, so the host's annotation is preferred.
        sent_by = told or above or by_name
        sent[i] = by_name if sent_by.collective == UNKNOWN and sent_by.bytes is None else sent_by
    return kind, sent, unit, guessed


def _carrying(
    gpu: DeviceEvents, names: tuple[str, ...], kind: Ints, call: Ints, lanes: Ints
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Copies between devices that carry a collective (NCCL's copy engines), and those of them without a known call.

    They lie on a communicator's stream, or were launched under a collective's call on a stream that computes nothing.
    """
    between = np.array([_BETWEEN.match(n) is not None for n in names], dtype=bool)
    copies = (kind == COPY) & (between[gpu.name] if len(names) else False)
    if not copies.any():
        return copies, copies
    computing = np.unique(gpu.stream[kind == COMPUTE])
    on_lane = np.isin(gpu.stream, lanes)
    carries = copies & (on_lane | ((call >= 0) & ~np.isin(gpu.stream, computing)))
    return carries, carries & (call < 0)


def _units(gpu: DeviceEvents, carries: NDArray[np.bool_], call: Ints) -> Ints:
    """Copies under one call are one collective, else those of one launch; any other event is one by itself."""
    unit = np.arange(len(carries))
    if carries.any():
        rows = np.flatnonzero(carries)
        keys = np.where(
            call[rows] >= 0, -2 - call[rows], np.where(gpu.correlation[rows] > 0, gpu.correlation[rows], -1)
        )
        keyed = keys != -1
        _, first, which = np.unique(keys[keyed], return_index=True, return_inverse=True)
        unit[rows[keyed]] = rows[keyed][first][which]
    return unit


def _enclosing(calls: tuple[Call, ...], launch: Ints, thread: Ints) -> Ints:
    """Index of the backend's annotation that encloses each launch on its thread; -1: none."""
    if not calls:
        return np.full(len(launch), -1)
    begin = np.array([c.begin + c.thread * FAR for c in calls])
    end = np.array([c.end + c.thread * FAR for c in calls])
    order = np.argsort(begin, kind="stable")
    where = launch + thread * FAR
    at = np.searchsorted(begin[order], where, side="right") - 1
    inside = (at >= 0) & (launch >= 0) & (where < end[order][np.maximum(at, 0)])
    return np.where(inside, order[np.maximum(at, 0)], -1)


def _lanes(gpu: DeviceEvents, sending: Ints, kernels: Ints) -> Ints:
    """Streams on which at least half of the `kernels` are surely communication."""
    streams, index = np.unique(gpu.stream[kernels], return_inverse=True)
    if not len(streams):
        return streams
    share = np.bincount(index, weights=sending[kernels]) / np.bincount(index)
    return streams[share >= 0.5]
