"""Find when each of DDP's buckets was ready."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.settings.run import COLLECTIVES
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.ddp import bucket_bytes, bucket_parameters
from scaling.worker.parallel.strategy import Detail

_ALL_REDUCE = COLLECTIVES.index("all_reduce")


class ReadyTimes:
    """When each bucket's last gradient was computed, from the time that DDP keeps for every parameter.

    The times are late by the gap between DDP's and the step's reading of the end of forward: some 10 us, or
    milliseconds where the rank lost its core in between. Callers clamp them to any later event they know.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # Weak: the wrapper holds its hook, the hook its probe. No collector sees that circle, which lies partly in C++.
        self._ddp = weakref.ref(ddp)
        self._parameters: list[list[int]] = []

    def absolute_ns(self, forward_end_ns: int) -> list[int]:
        """Ready times of the buckets in the order of reduction; empty before DDP's second step."""
        if not self._parameters:  # the buckets do not change once they are rebuilt
            self._parameters = bucket_parameters(_alive(self._ddp))
        each = self.of_parameters(forward_end_ns)
        return [max(each[i] for i in indices) for indices in self._parameters]

    def of_parameters(self, forward_end_ns: int) -> list[int]:
        """Ready time of every parameter, in the order of registration. DDP counts from the end of forward."""
        return [forward_end_ns + since for since in _alive(self._ddp).reducer.get_backward_stats()]


def _alive(ddp: weakref.ref[DistributedDataParallel]) -> DistributedDataParallel:
    wrapper = ddp()
    assert wrapper is not None, "the wrapper is gone"
    return wrapper


class SoloProbe(Detail):
    """Ready times of a wrapper that reduces over one rank. Nothing is sent, so launch and done are 0.

    On the CPU they come from DDP. On a device a hook on the last parameter of each bucket stamps its gradient's end;
    these hooks exist inside `taking` only, since all arms share the parameters.
    """

    def __init__(self, ddp: DistributedDataParallel, device: Accelerator) -> None:
        self._ddp = weakref.ref(ddp)
        self._bytes = bucket_bytes(ddp)
        super().__init__(stamps=len(self._bytes))
        self._ready = ReadyTimes(ddp) if device.type == CPU else None
        self._stamp = device.clock.stamp
        self._ready_at = [0] * len(self._bytes)
        self._parameters: list[list[int]] = []

    @contextlib.contextmanager
    def _seeing(self) -> Iterator[None]:
        """On a device the hooks are there inside."""
        self._parameters = []
        with contextlib.ExitStack() as hooks:
            if self._ready is None:
                parameters = [p for p in _alive(self._ddp).module.parameters() if p.requires_grad]
                for index, members in enumerate(bucket_parameters(_alive(self._ddp))):
                    # DDP rebuilds buckets in the order of the gradients, so the last parameter is ready last.
                    hook = functools.partial(self._note, index)
                    hooks.callback(parameters[members[-1]].register_post_accumulate_grad_hook(hook).remove)
            yield

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        self._ready_at[index] = self._stamp()

    def _rows(self, forward_end_ns: int) -> list[CollectiveRow]:
        """The buckets of the step that has just ended: none was ready later than now."""
        over = now_ns()
        ready = self._ready_at
        if self._ready:
            self._parameters.append(self._ready.of_parameters(forward_end_ns))
            ready = [min(at, over) for at in self._ready.absolute_ns(forward_end_ns)]
        return [
            CollectiveRow(seq=seq, kind=_ALL_REDUCE, group=1, bytes=size, ready_ns=at, launch_ns=0, done_ns=0)
            for seq, (size, at) in enumerate(zip(self._bytes, ready, strict=False))
        ]

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:
        """(bytes, ready ns since the step's begin) of every parameter, mean over the last steps taken.

        `begin_ns` is when these steps began. Empty on a device, where DDP knows no ready times.
        """
        step_stamps = self._parameters[-len(begin_ns) :]
        if not step_stamps:
            return []
        begun = sum(begin_ns)
        parameters = [p for p in _alive(self._ddp).module.parameters() if p.requires_grad]
        return [
            (p.numel() * p.element_size(), (sum(stamps) - begun) // len(step_stamps))
            for p, stamps in zip(parameters, zip(*step_stamps, strict=True), strict=True)
        ]
