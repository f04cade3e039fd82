"""SyncBatchNorm inside a module: over which ranks it takes its statistics, and where a rank waits for them.

A layer gathers its mean and variance from all ranks in forward and adds up two sums over them in backward. torch makes
these calls without async_op (torch/nn/modules/_functions.py), so the current stream goes on when the result is there.
Over one rank a layer does what BatchNorm does and calls nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scaling.spec.run import KINDS
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.functional import phase_now
from scaling.worker.parallel.guard import around
from scaling.worker.parallel.tap import Seen, Tap

_CALLS = {
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather",  # since torch 2.13
    "all_gather_into_tensor": "all_gather",
}
"""What the layers call in torch.distributed, and its kind. The group is the third argument, async_op the fourth."""
_GATHER, _REDUCE = KINDS.index("all_gather"), KINDS.index("all_reduce")


class Norms:
    """The SyncBatchNorm layers of a module; there may be none."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]

    def __len__(self) -> int:
        return len(self._layers)

    def over(self, group: Any) -> None:
        """Take statistics over the ranks of a process group from here on."""
        for layer in self._layers:
            layer.process_group = group

    def are_over(self, group: Any) -> bool:
        """Whether all of them take statistics over the ranks of this process group."""
        return all((layer.process_group or dist.group.WORLD) is group for layer in self._layers)

    def sent(self, ranks: int) -> frozenset[tuple[int, int]]:
        """What they send over so many ranks: kind, and elements of the result.

        A rank's means, inverse deviations and count in forward; in backward two sums a channel.
        """
        gathered = {(_GATHER, ranks * (2 * one.num_features + 1)) for one in self._layers}
        return frozenset(gathered | {(_REDUCE, 2 * one.num_features) for one in self._layers})


class InlineWaits:
    """Stamps what the layers call over a process group, in probe blocks only. Other calls pass."""

    def __init__(self, norms: Norms, group: Any, stamp: Callable[[], int], tap: Tap | None = None) -> None:
        """`tap`: one that is open meanwhile, and is not to note what is stamped here."""
        self._group, self._stamp, self._tap = group, stamp, tap
        self._sent = norms.sent(dist.get_world_size(group))
        self._found: list[Seen] = []

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside, torch.distributed's functions stamp such calls. They are put back afterwards."""
        self._found = []
        before = {name: getattr(dist, name) for name in _CALLS if hasattr(dist, name)}
        for name, call in before.items():
            setattr(dist, name, around(call, functools.partial(self._call, KINDS.index(_CALLS[name]))))
        try:
            yield
        finally:
            for name, call in before.items():
                setattr(dist, name, call)

    def take(self) -> list[Seen]:
        """What was stamped since the last call, in order."""
        found, self._found = self._found, []
        return found

    def _call(self, kind: int, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        group = args[2] if len(args) > 2 else named.get("group")
        asynchronous = args[3] if len(args) > 3 else named.get("async_op", False)
        result: Any = args[0] if args else None
        ours = group is self._group and not asynchronous and isinstance(result, torch.Tensor)
        if not ours or (kind, result.numel()) not in self._sent:
            return call(*args, **named)
        seen = Seen(
            kind=kind,
            group=group,
            bytes=result.nbytes,
            dtype=result.dtype,
            phase=phase_now(),
            unit=-1,
            enqueue_ns=now_ns(),
            launch=self._stamp(),
        )
        with self._tap.passing() if self._tap else contextlib.nullcontext():
            answer = call(*args, **named)
        seen.wait, seen.done = seen.launch, self._stamp()
        seen.resume = seen.done
        self._found.append(seen)
        return answer
