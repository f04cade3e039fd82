"""Count one step's FLOPs, bytes and operators below autograd, and note costly habits in the user's code."""

from __future__ import annotations

import collections
import contextlib
import io
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from scaling.records.checkup import Operator, Sighting
from scaling.worker.parallel.torch_private import (
    TorchDispatchMode,
    aten_name,
    in_backward,
    last_node,
    node_in_backward,
    packet_of,
    tensors_in,
)

FLOAT64 = "float64"
HOST_SYNC = "host_sync"
PRINT = "print"
TO_HOST = "to_host"
PAGEABLE = "pageable_copy"
BLOCKING = "blocking_copy"
MIXED_DEVICES = "mixed_devices"

_READS_BACK = ("_local_scalar_dense",)
_COPIES = ("_to_copy", "copy_")
_FREE = ("profiler", "prim")
_CREATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "detach")
_OPTIMIZERS = "/torch/optim/"
_DISPATCHING = ("/torch/_compile.py", "/torch/_dynamo/", "/torch/utils/_python_dispatch.py")
_CHECKPOINT = "/torch/utils/checkpoint.py"
_OURS = ("/torch/", "/scaling/worker/", "<frozen", "<string>")


class Layers(ModuleTracker):
    """Knows the layer of an operator; in backward, that of the operator whose gradient it computes.

    Each forward operator makes an autograd node with a sequence number of its own, which backward runs again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_node: dict[int, str] = {}
        self._last = -1

    def layer(self) -> str:
        """The path of the module that runs; empty outside of all, as in the optimizer."""
        node = node_in_backward()
        if node is not None and not torch.is_grad_enabled():
            return self._by_node.get(node, "")
        names = [n for n in self.parents if n != "Global"]
        layer = max(names, key=len).partition(".")[2] if names else ""
        number = last_node()
        if number != self._last:  # an operator without a node leaves the number as it is
            self._by_node[number], self._last = layer, number
        return layer


class Work(TorchDispatchMode):
    """Counts operators while it is active. Views and allocations move no data and are not counted.

    FLOPs come from torch's flop counter (`flop_registry`). Bytes are those of all tensors that an operator read and
    wrote.
    """

    def __init__(self, layers: Layers, home: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers
        self._home = home
        self._totals: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        self._seen: dict[tuple[str, str, str, str], int] = collections.Counter()
        self.recomputed_flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        layer = self._layers.layer()
        if is_free(func):
            return result
        name = str(packet_of(func)).partition(".")[2]
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        written = [t for t in outputs if not any(t is g for g in inputs)] or outputs
        flops = flops_of(func, args, kwargs, result)
        if flops and _recomputing():
            self.recomputed_flops += flops
        total = self._totals[name, layer]
        total[0] += 1
        total[1] += flops
        total[2] += sum(t.numel() * t.element_size() for t in (*inputs, *written))
        self._look(name, layer, inputs, outputs, kwargs)
        return result

    def operators(self) -> tuple[Operator, ...]:
        """Totals by operator and layer."""
        return tuple(
            Operator(name=name, layer=layer, count=count, flops=flops, bytes=size)
            for (name, layer), (count, flops, size) in self._totals.items()
        )

    def sightings(self) -> tuple[Sighting, ...]:
        """Costly habits, in the order of first appearance."""
        return tuple(
            Sighting(what=what, where=where, layer=layer, count=count, detail=detail)
            for (what, where, layer, detail), count in self._seen.items()
        )

    def see(self, what: str, layer: str = "", detail: str = "") -> None:
        """Note something at the current line of the user's code."""
        self._seen[what, _place(), layer, detail] += 1

    def _look(
        self, name: str, layer: str, inputs: list[Any], outputs: list[Any], kwargs: dict[str, Any]
    ) -> None:
        if name in _READS_BACK:
            if not self._is_the_hosts(inputs[0]):
                self.see(HOST_SYNC, layer)
            return
        if any(t.dtype in (torch.float64, torch.complex128) and t.dim() for t in outputs):
            self.see(FLOAT64, layer, name)
        source = inputs[-1 if name == "copy_" else 0] if inputs else None
        moves = source is not None and outputs and outputs[0].device.type != source.device.type
        if moves and name in _COPIES:
            self._copy(layer, source, outputs[0], bool(kwargs.get("non_blocking", False)))
        elif len({t.device.type for t in inputs if t.dim()}) > 1:
            self.see(MIXED_DEVICES, layer, name)

    def _is_the_hosts(self, read: torch.Tensor) -> bool:
        """Whether a tensor lies on the host by design, like Adam's step count, so that reading it does not wait."""
        if self._home != "cpu":
            return read.device.type == "cpu"
        return _innermost_is(_OPTIMIZERS)

    def _copy(self, layer: str, source: Any, target: Any, non_blocking: bool) -> None:
        if target.device.type == "cpu":
            self.see(TO_HOST, layer)
        elif target.device.type == self._home:
            # A copy from pageable memory always waits; one from pinned memory need not.
            if not source.is_pinned():
                self.see(PAGEABLE, layer)
            elif not non_blocking:
                self.see(BLOCKING, layer)


class _Watched(io.TextIOBase):
    """Standard output that reports each line written to it."""

    def __init__(self, behind: Any, note: Callable[[], None]) -> None:
        self._behind, self._note = behind, note

    def write(self, text: str) -> int:
        """Pass text on. Each line counts as one print, even if it comes in pieces."""
        if "\n" in text:
            self._note()
        return int(self._behind.write(text))


@contextlib.contextmanager
def watching(home: str) -> Iterator[Work]:
    """Watch what runs inside; `home` is the type of device that the model is on."""
    layers = Layers()
    work = Work(layers, home)
    with layers, work, contextlib.redirect_stdout(_Watched(sys.stdout, lambda: work.see(PRINT))):
        yield work


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """FLOPs of one operator by torch's flop counter; 0 where it counts none."""
    counter = flop_registry.get(packet_of(func))
    return int(counter(*args, **kwargs, out_val=result)) if counter else 0


def is_free(func: Any) -> bool:
    """Whether an operator moves no data: views, allocations, marks of a profiler."""
    name = aten_name(func)
    return func.namespace in _FREE or getattr(func, "is_view", False) or name in _CREATES


def _recomputing() -> bool:
    """Whether torch's checkpointing runs a forward again: inside a backward, and with gradients on.

    A backward that makes a graph of itself (create_graph) has gradients on too, but no checkpointing on its stack.
    """
    if not in_backward() or not torch.is_grad_enabled():
        return False
    return any(name.endswith(_CHECKPOINT) for name, _ in _frames())


def _innermost_is(part: str) -> bool:
    """Whether the innermost frame outside this file and torch's dispatching is in a file whose path has `part`."""
    outer = (n for n, _ in _frames() if n != __file__ and not any(p in n for p in _DISPATCHING))
    return part in next(outer, "")


def _place() -> str:
    """file:line of the innermost frame that is neither torch's nor ours."""
    outside = (f"{name}:{line}" for name, line in _frames() if not any(part in name for part in _OURS))
    return next(outside, "")


def _frames() -> Iterator[tuple[str, int]]:
    """(file, line) of each frame, the innermost first; `extract_stack` would keep the text of these files in memory."""
    stack = traceback.walk_stack(sys._getframe())  # noqa: SLF001
    return ((frame.f_code.co_filename, line) for frame, line in stack)
