"""Registers the device and its back end with torch, and sets how they behave."""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from scaling_simulator import build

library: ModuleType | None = None
_kept: list[Any] = []


def load() -> ModuleType:
    """Register the device "sim" as `torch.sim` and the back end "simccl", and return the library.

    Does it once a process; later calls return the same library. Builds the library where it is not in the cache yet.

    Raises:
        BuildError: it cannot be built here; the message says what is missing.

    """
    global library  # noqa: PLW0603
    if library is not None:
        return library
    import torch  # noqa: PLC0415  (`python -m scaling_simulator` says what is missing without torch)
    import torch.distributed as dist  # noqa: PLC0415

    from scaling_simulator import cells, norms  # noqa: PLC0415
    from scaling_simulator.module import device_module  # noqa: PLC0415

    torch.utils.rename_privateuse1_backend("sim")  # type: ignore[attr-defined]
    library = build.library()
    library.register_device()
    module = device_module(library)
    torch._register_device_module("sim", module)  # type: ignore[no-untyped-call]  # noqa: SLF001
    sys.modules["torch.sim"] = module
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)  # type: ignore[attr-defined]
    _add(*norms.KERNELS, *cells.KERNELS)
    dist.Backend.register_backend("simccl", _create, extended_api=True, devices=["sim"])
    atexit.register(library.shut_down)
    return library


def _add(*kernels: Callable[..., Any]) -> None:
    """Operators of torch's by their names, once a process. The library lives as long as its kernels."""
    import torch  # noqa: PLC0415

    added = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for kernel in kernels:
        added.impl(kernel.__name__, kernel, "PrivateUse1")  # type: ignore[no-untyped-call]
    _kept.append(added)


def _create(options: Any, _: Any = None) -> Any:
    assert library is not None
    ranks = list(options.global_ranks_in_group)
    return library.create(options.store, options.group_rank, options.group_size, options.timeout, ranks)


def configure(**settings: float) -> None:
    """Change settings, while nothing runs: the fields of `Config` in csrc/core.h.

    `devices`, `virtual_clock`, `math`, `alike`, `null_work`, `connections`, `wait_us`, `launch_us`, `kernel_us`,
    `communicator_us`, `slip_us`, `flops`, `flops32`, `memory_bytes_s`, `host_bytes_s`, `slowdown`, `stretch`,
    `spread`, `noise`, `noise_seed`, `capacity_bytes`, `buffered_bytes`.
    """
    load().configure(settings)


def line(latency_us: float, gb_s: float) -> list[tuple[float, float]]:
    """The points of a link with one latency and one bandwidth."""
    return [(0.0, latency_us), (1e9, latency_us + 1e6 / gb_s)]


def set_link(points: list[tuple[float, float]], group: str = "*", kind: str = "*") -> None:
    """What transfers of a group take: points of (bytes that a rank puts on the wire, microseconds).

    `group` is its description: "default_pg", "mesh_NAME" for a mesh's dimension, what `new_group` was given, or "*" for
    all that have no link of their own. `kind` is "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "scatter", "gather", "all_to_all", "barrier", "send_recv" or "*".
    """
    load().set_link(group, kind, points)


def unlink() -> None:
    """Forget all links; transfers take what they do where nothing was said (csrc/links.cpp)."""
    load().clear_links()


def set_wire(*groups: str, ranks_per_node: int = 1) -> None:
    """Let transfers of these groups share a wire at each node; csrc/wire.h says how. No groups: share none.

    Groups are named as in `set_link`; "*": all that were given no wire.
    """
    load().set_wire(list(groups), ranks_per_node)


def set_cost(us: float, *operators: str) -> None:
    """What each kernel of these operators ("aten::mm") takes, whatever its size."""
    for operator in operators:
        load().set_cost(operator, us)


def link_ns(kind: str, payload_bytes: int, ranks: int, group: str = "default_pg") -> int:
    """What a transfer of this payload takes alone."""
    lib = load()
    return int(lib.link_ns(group, kind, lib.wire_bytes(kind, payload_bytes, ranks)))


def host_ms() -> float:
    """What the host's clock shows, simulated or real."""
    return int(load().host_ns()) / 1e6


def exactly(ms: float) -> int:
    """Nanoseconds of a time that torch gives in milliseconds."""
    return math.floor(ms * 1e6 + 0.5)


def sleep_us(us: float) -> None:
    """A kernel on the current stream that takes this long: a rank that is late on its device."""
    load().sleep_us(us)


def host_spend_us(us: float) -> None:
    """The host works for this long on the virtual clock: a rank that is late on its host."""
    load().host_spend_us(us)


def lose_device(index: int, after_us: float = 0.0) -> None:
    """From then on nothing runs on the device, and the next wait for it raises torch.AcceleratorError."""
    load().lose_device(index, after_us)
