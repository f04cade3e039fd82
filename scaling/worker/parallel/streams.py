"""Find the stream on which a communicator runs its collectives, and whether stamps there hold up other streams.

A back end such as NCCL's runs an asynchronous collective on a stream that it took from torch's pool and tells nobody.
An experiment finds it: behind a long kernel a collective waits, and the one stream of the pool that is not idle then is
the communicator's. Stamps there, before and behind a collective, have its kernel between them, and no stream waits that
would not have waited anyway. A stamp on a stream of its own, that waits for the collective, is no way to see its end:
streams share a few work queues in which everything is issued in order, and a stream that waits holds all that is behind
it there, the step's own kernels too.

An event that keeps time also holds its queue until its stream has come to it. So a second experiment puts such an event
behind a long kernel on each stream that is stamped, and looks whether kernels of the other streams pass. Where they do
not, as with CUDA_DEVICE_MAX_CONNECTIONS=1, details would change the step.

Both take some 10 ms a stream, synchronise the device, and run before a block is timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling.records.format import DISTURBS, UNKNOWN_STREAM
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.tap import HOST_BACKENDS, Tap, backend_of

LONG_S = 0.01
"""How long the kernel takes behind which a collective, or an event, waits."""
TRIES = 3
POOL, PRIORITIES = 32, (0, -1, -2, -3)
"""torch hands out so many streams of each priority in turn (c10/cuda/CUDAStream.h). The highest one is that of NCCL's
groups with `is_high_priority_stream`; where a device has fewer, several of these numbers mean the same streams."""

_holding: dict[tuple[int, ...], bool] = {}
"""By the streams that are stamped, whether that holds up others."""
_first: dict[int, int] = {}
"""By priority, the stream of the pool behind which every model takes its own."""


def rewind(device: Accelerator) -> None:
    """Let the next model, and communicators that it makes, take the same streams of the pool as those before it.

    A training makes one model, which takes the first streams. Here a process makes many in turn, and without this each
    would take others, some of which share a work queue with the kernels that compute.
    """
    for priority in PRIORITIES if device.type != CPU else ():
        for _ in range(POOL):
            stream = torch.Stream(device.torch_device, priority=priority)
            if stream.stream_id == _first.setdefault(priority, stream.stream_id):
                break


def find(groups: Iterable[Any], device: Accelerator) -> None:
    """Find the stream of each group that has none yet and tell the tap. Every rank of the groups calls this at once.

    A group whose stream is not found on one of its ranks has none on any of them.
    """
    for group in groups:
        settled = group.group_name in Tap.streams or dist.get_world_size(group) == 1
        if not settled and backend_of(group, device.type) not in HOST_BACKENDS:
            Tap.streams[group.group_name] = stream_of(group, device)


def withheld(groups: Iterable[Any], beside: Sequence[Any], device: Accelerator) -> str:
    """Why a step's collectives must not be stamped: records.format.DISTURBS or UNKNOWN_STREAM; empty: they may be.

    `beside`: further streams on which the strategy starts collectives. The answer is this rank's own.
    """
    over = [
        g for g in groups if dist.get_world_size(g) > 1 and backend_of(g, device.type) not in HOST_BACKENDS
    ]
    streams = [Tap.streams.get(group.group_name) for group in over]
    if not streams or None in streams:
        return UNKNOWN_STREAM if streams else ""
    stamped = {each.stream_id: each for each in (*streams, *beside)}
    key = tuple(sorted(stamped))
    if key not in _holding:
        _holding[key] = hold_up(list(stamped.values()), device)
    return DISTURBS if _holding[key] else ""


def one_queue(device: Accelerator) -> bool:
    """Whether an accelerator's streams share one work queue, so that a collective holds up all kernels behind it.

    One round of the pool is taken, after which it hands out the streams that it would have.
    """
    if device.type == CPU:
        return False
    pool = [torch.Stream(device.torch_device) for _ in range(POOL)]
    return all(hold_up([stream], device) for stream in pool[:TRIES])


def agreed(why: str, control: Any) -> str:
    """The answer for all ranks of a group: streams of one may share a queue, and those of another may not.

    `control`: their group on the host; None: a rank alone.
    """
    if control is None:
        return why
    answers = ("", DISTURBS, UNKNOWN_STREAM)
    place = torch.tensor(answers.index(why))
    dist.all_reduce(place, dist.ReduceOp.MAX, group=control)
    return answers[int(place)]


def stream_of(group: Any, device: Accelerator) -> Any:
    """The stream of a group; None where one of its ranks did not find it. All of them call this at once."""
    sent = torch.zeros(1, device=device.torch_device)
    dist.all_reduce(sent, group=group)  # makes the communicator
    for attempt in range(TRIES):
        stream = _busy_behind(group, sent, device, LONG_S * 4**attempt)
        seen = torch.full((1,), float(stream is not None), device=device.torch_device)
        dist.all_reduce(seen, dist.ReduceOp.MIN, group=group)
        if seen.item():
            return stream
    return None


def _busy_behind(group: Any, sent: torch.Tensor, device: Accelerator, long_s: float) -> Any:
    """The one stream of the pool that waits with a collective; None: there are several, or the kernel was too short."""
    pool = {}
    for priority in PRIORITIES:
        for _ in range(POOL):
            stream = torch.Stream(device.torch_device, priority=priority)
            pool[stream.stream_id] = stream
    device.synchronize()
    device.spin(long_s)
    computed = torch.Event(device.type)
    computed.record()
    work = dist.all_reduce(sent, group=group, async_op=True)
    here = torch.accelerator.current_stream().stream_id
    busy = [stream for stream in pool.values() if stream.stream_id != here and not stream.query()]
    waits = not computed.query()
    work.wait()
    device.synchronize()
    return busy[0] if waits and len(busy) == 1 else None


def hold_up(stamped: Sequence[Any], device: Accelerator) -> bool:
    """Whether an event that keeps time on one of the streams holds a kernel of another one, or of the current one."""
    every = [torch.accelerator.current_stream(), *stamped]
    written = [torch.zeros(1, device=device.torch_device) for _ in every]
    for kernel in written:
        kernel.add_(1)
    for stream in stamped:
        device.synchronize()
        begin = _timed(device)
        with stream:
            device.spin(LONG_S)
            end = _timed(device)
        passed = []
        for other, kernel in zip(every, written, strict=True):
            if other.stream_id != stream.stream_id:
                with other:
                    kernel.add_(1)
                    passed.append(_timed(device))
        device.synchronize()
        if any(begin.elapsed_time(each) >= begin.elapsed_time(end) for each in passed):
            return True
    return False


def _timed(device: Accelerator) -> torch.Event:
    event = torch.Event(device.type, enable_timing=True)
    event.record()
    return event
