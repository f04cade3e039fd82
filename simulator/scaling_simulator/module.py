"""`torch.sim`: what torch and training code ask of `torch.cuda` by the same names."""

# ruff: noqa: SLF001  (torch.accelerator asks the device's module for its count: the hooks' own is private)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


class Event(torch.Event):
    """An event of the device; `record` gives itself back, which FSDP2 counts on.

    torch's own `elapsed_time` takes no subclass, so this one reads the stamps themselves.
    """

    stamp_of: Callable[[int], int]

    def __new__(  # noqa: PYI034
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,  # noqa: ARG004  (callers may name it)
    ) -> Event:
        return super().__new__(cls, "sim", enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: torch.Stream | None = None) -> Event:  # type: ignore[override]
        """Record the event on a stream, the current one by default, and return it."""
        super().record(stream if stream is not None else torch.accelerator.current_stream())
        return self

    @property
    def stamp_ns(self) -> int:
        """When the device came to the event, on the clock that `torch.sim.clock_ns` shows; waits for it."""
        return Event.stamp_of(self.event_id)

    def elapsed_time(self, other: torch.Event) -> float:
        """Milliseconds from this event to the other; both have to be completed."""
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (Event.stamp_of(other.event_id) - self.stamp_ns) / 1e6


class device:  # noqa: N801
    """Makes a device the current one for a while; None leaves it as it is."""

    def __init__(self, which: Any) -> None:
        self.index = which if isinstance(which, int) or which is None else torch.device(which).index

    def __enter__(self) -> None:
        self.before = torch.accelerator.current_device_index()
        if self.index is not None:
            torch.accelerator.set_device_index(self.index)

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_device_index(self.before)


def device_module(library: ModuleType) -> ModuleType:
    """The module that `torch.get_device_module("sim")` gives."""
    module = ModuleType("torch.sim")
    Event.stamp_of = library.event_ns
    for names in (_devices(), _streams(), _memory(library), _random(library), _clock(library)):
        for name, value in names.items():
            setattr(module, name, value)
    return module


def _devices() -> dict[str, Any]:
    return {
        "device": device,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": torch._C._accelerator_hooks_device_count,  # torch.accelerator's own asks this one
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "get_device_name": lambda which=None: "Simulated accelerator",  # noqa: ARG005
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda: True,
        "_is_in_bad_fork": lambda: False,
    }


class Stream(torch.Stream):
    """A stream of the device, with waits in Python as torch.cuda's has them."""

    def __new__(cls, device: Any = None, priority: int = 0, **more: Any) -> Stream:  # noqa: PYI034
        """On the current device by default; `more`: the ids of a stream that there is."""
        if more:
            return super().__new__(cls, **more)
        index = torch.accelerator.current_device_index()
        where = torch.device("sim", index) if device is None else torch.device(device)
        return super().__new__(cls, where, priority=priority)

    def wait_event(self, event: torch.Event) -> None:
        """Let what comes on this stream wait for an event."""
        super().wait_event(event)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Let what comes on this stream wait for what is on another one now."""
        super().wait_stream(stream)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record an event on this stream, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event


def _streams() -> dict[str, Any]:
    def current_stream(which: Any = None) -> torch.Stream:
        now = torch.accelerator.current_stream(which)
        return Stream(stream_id=now.stream_id, device_index=now.device_index, device_type=now.device_type)

    return {
        "Event": Event,
        "Stream": Stream,
        "stream": lambda s: contextlib.nullcontext() if s is None else s,
        "current_stream": current_stream,
        "set_stream": torch.accelerator.set_stream,
        "synchronize": torch.accelerator.synchronize,
    }


def _memory(library: ModuleType) -> dict[str, Any]:
    limited: dict[str, int] = {}  # what the capacity was, and what it was limited to

    def whole(total: int) -> int:
        return limited["whole"] if total == limited.get("to") else total

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        free, total = torch.accelerator.get_memory_info(device)
        return int(free), whole(int(total))

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        """Of the capacity of every device of this process: ranks have one each."""
        total = mem_get_info(device)[1]
        limited.update(whole=total, to=int(total * fraction))
        library.configure({"capacity_bytes": limited["to"]})

    names = (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
    )
    more = ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache")
    return {
        "mem_get_info": mem_get_info,
        "set_per_process_memory_fraction": set_per_process_memory_fraction,
    } | {n: getattr(torch.accelerator, n) for n in (*names, *more)}


def _random(library: ModuleType) -> dict[str, Any]:
    def generator(which: Any = None) -> torch.Generator:
        index = torch.accelerator.current_device_index() if which is None else which
        place = index if isinstance(index, int) else torch.device(index).index or 0
        default: torch.Generator = library.default_generator(place)
        return default

    def seed_all(seed: int) -> None:
        for index in range(torch._C._accelerator_hooks_device_count()):
            generator(index).manual_seed(seed)

    return {
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": seed_all,
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": lambda which=None: generator(which).get_state(),
        "set_rng_state": lambda state, which=None: generator(which).set_state(state),
    }


def _clock(library: ModuleType) -> dict[str, Any]:
    """The hook for a program that measures: where the device has a clock of its own, the host's stamps come from it.

    `sleep_us` queues a kernel on the current stream that takes so long.
    """
    return {"clock_ns": library.host_ns, "sleep_us": library.sleep_us}
