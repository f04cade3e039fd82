"""Collectives that a back end does at a cost of its own, done as NCCL does them.

Exchange tensors between the ranks of a host back end (Gloo) so that both directions of a link carry data at once.

Gloo sends a message once it knows that the peer has a buffer for it. The peer says so over the same socket on which it
sends its own data. In a collective of Gloo's a rank may begin to send first; its notice then waits behind its data, and
the peer begins only when these are through: one direction after the other. Here every rank says first what it
receives, and then sends.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from scaling.worker.parallel.tap import HOST_BACKENDS, Tap, backend_of

_TAG = 0x5CA1
"""Tag of all messages here, so that no other message of the group is taken for one. Those of a pair arrive in order."""
_Ended: TypeAlias = "Future[None]"


class Exchange(dist.Work):
    """Messages on their way. They proceed on the back end's threads."""

    def __init__(
        self, received: Mapping[int, torch.Tensor], sent: Mapping[int, torch.Tensor], group: dist.ProcessGroup
    ) -> None:
        """Begin to receive into and to send contiguous tensors of the host's memory.

        They are by the other rank's place in the group, all of whose ranks begin their exchanges in the same order.
        """
        super().__init__()
        self._works = [group.recv([tensor], rank, _TAG) for rank, tensor in received.items()]
        self._works += [group.send([tensor], rank, _TAG) for rank, tensor in sent.items()]
        self._group = group.group_name
        self._ended: _Ended | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002  # the group's counts
        """Block until all have arrived and are sent. RuntimeError where the back end failed."""
        if self._ended is not None:
            self._ended.result()
        else:
            _wait(self._works)
        return True

    def get_future(self) -> Any:
        """A future that ends when the messages have. A thread waits for it, since works of messages have none."""
        if self._ended is None:
            self._ended = Future()
            _waiting(self._group).put((self._works, self._ended))
        return self._ended


def _wait(works: list[dist.Work]) -> None:
    """Wait for each once: Gloo would wait forever for one that it has waited for."""
    while works:
        works.pop(0).wait()


_QUEUES: dict[str, queue.SimpleQueue[tuple[list[dist.Work], _Ended]]] = {}
"""By group: exchanges of one group end in order, those of several need not."""


def _waiting(group: str) -> queue.SimpleQueue[tuple[list[dist.Work], _Ended]]:
    """The queue of a group's exchanges that a thread waits for."""
    if group not in _QUEUES:
        _QUEUES[group] = queue.SimpleQueue()
        threading.Thread(target=_end_all, args=(_QUEUES[group],), name="exchanges", daemon=True).start()
    return _QUEUES[group]


def _end_all(exchanges: queue.SimpleQueue[tuple[list[dist.Work], _Ended]]) -> None:
    while True:
        _end(*exchanges.get())


def _end(works: list[dist.Work], ended: _Ended) -> None:
    try:
        _wait(works)
    except Exception as error:  # noqa: BLE001  # raised where the rank waits
        ended.set_exception(error)
    else:
        ended.set_result(None)


# torch 2.13 renamed them; the older names still exist there and warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_gathers: dict[str, weakref.WeakSet[dist.Work]] = {}
"""All-gathers that are not waited for yet, by the name of their group."""
_rings: set[str] = set()
"""Names of the groups in which Gloo's ring gathers."""


def gather_in_rings(group: Any, hosts: Sequence[int]) -> None:
    """Let Gloo's ring gather in a group of which some ranks share a host and others do not. `hosts`: of its ranks.

    There a ring sends less between hosts than ranks that send each other their parts. Every rank of the group says so.
    """
    if len(hosts) > 2 and 1 < len(set(hosts)) < len(hosts):
        _rings.add(group.group_name)


def all_gather(
    whole: torch.Tensor, part: torch.Tensor, group: Any, *, async_op: bool = False
) -> dist.Work | None:
    """Gather every rank's `part` in `whole`, of which it may be a view. Returns the work where it is asynchronous.

    Gloo's own sends over the link of two ranks in one direction after the other, and among more it pauses between the
    steps of its ring. So ranks send each other their parts, which puts (n-1)/n of `whole` on a link, as a ring does
    (but see `gather_in_rings`).
    """
    on_host = part.device.type == "cpu" and backend_of(group, part.device.type) in HOST_BACKENDS
    if not on_host or group.group_name in _rings:
        work: dist.Work | None = _all_gather(whole, part, group=group, async_op=async_op)
    else:
        work = _exchange_parts(whole, part, group, async_op=async_op)
    if async_op and on_host and work is not None:
        _gathers.setdefault(group.group_name, weakref.WeakSet()).add(work)
    return work if async_op else None


def _exchange_parts(whole: torch.Tensor, part: torch.Tensor, group: Any, *, async_op: bool) -> dist.Work:
    n, mine = dist.get_world_size(group), dist.get_rank(group)
    parts = whole.view(n, -1)

    def begin() -> Exchange:
        others = [rank for rank in range(n) if rank != mine]
        begun = Exchange({r: parts[r] for r in others}, dict.fromkeys(others, part), group)
        if parts[mine].data_ptr() != part.data_ptr():
            parts[mine].copy_(part.view(-1))
        return begun

    return _begin("all_gather", begin, group, whole, waits=not async_op)


def reduce_scatter(output: torch.Tensor, whole: torch.Tensor, group: Any, *, mean: bool = False) -> None:
    """Sum `whole` over the ranks and keep this rank's part of it in `output`.

    Gloo's own moves as much as an all-reduce. There each rank sends every other its part and sums what it receives,
    which moves (n-1)/n of `whole`, as a ring does. It begins once the all-gathers of the group are done that this rank
    began before, as on a communicator of NCCL's.
    """
    if backend_of(group, whole.device.type) not in HOST_BACKENDS:
        _reduce_scatter(output, whole, group=group, op=dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
        return
    n, mine = dist.get_world_size(group), dist.get_rank(group)
    parts = whole.cpu().view(n, -1)  # messages are of the host's memory
    received = torch.empty_like(parts)

    def begin() -> Exchange:
        for gather in list(_gathers.pop(group.group_name, ())):
            gather.wait()
        others = [rank for rank in range(n) if rank != mine]
        begun = Exchange({r: received[r] for r in others}, {r: parts[r] for r in others}, group)
        received[mine] = parts[mine]
        return begun

    _begin("reduce_scatter", begin, group, parts, waits=True)
    torch.sum(received.to(whole.device), dim=0, out=output.view(-1))
    if mean:
        output.div_(n)


def _begin(
    kind: str, begin: Callable[[], dist.Work], group: Any, sized: torch.Tensor, *, waits: bool
) -> dist.Work:
    """Begin a collective that is made of messages; `waits`: and wait for its end."""
    if Tap.now is not None:
        return Tap.now.begin(kind, begin, group, sized, waits=waits)
    work = begin()
    if waits:
        work.wait()
    return work
