"""Exchange tensors between the ranks of a host back end (Gloo) so that both directions of a link carry data at once.

Gloo sends a message once it knows that the peer has a buffer for it. The peer says so over the same socket on which it
sends its own data. In a collective of Gloo's a rank may begin to send first; its notice then waits behind its data, and
the peer begins only when these are through: one direction after the other. Here every rank says first what it
receives, and then sends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

_TAG = 0x5CA1
"""Of all messages here, so that no other message of the group is taken for one. Those of a pair arrive in order."""
_Ended: TypeAlias = "Future[None]"


def exchange(
    received: Mapping[int, torch.Tensor], sent: Mapping[int, torch.Tensor], group: dist.ProcessGroup
) -> Exchange:
    """Begin to receive into and to send contiguous tensors of the host's memory.

    They are by the other rank's place in the group, all of whose ranks begin their exchanges in the same order.
    """
    works = [group.recv([tensor], rank, _TAG) for rank, tensor in received.items()]
    works += [group.send([tensor], rank, _TAG) for rank, tensor in sent.items()]
    return Exchange(works, group.group_name)


class Exchange(dist.Work):
    """Messages on their way. They proceed on the back end's threads."""

    def __init__(self, works: list[dist.Work], group: str) -> None:
        super().__init__()
        self._works, self._group = works, group
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
