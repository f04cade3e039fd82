"""The control plane: which rank runs when, which has failed, what was agreed. Over the store, not in collectives.

Idle ranks sleep in `store.wait` in slices and check the abort key in between, so when a rank fails, all others end
within a slice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch.distributed as dist

SLICE = timedelta(seconds=2)
ABORT = "abort"
WAITED = "Wait timeout"
"""How the message of a file store's time-out begins; it has no exception class of its own."""


class Aborted(Exception):  # noqa: N818
    """Another rank failed first. Its error file says how."""


class Control:
    """Agreement between the ranks of one launch."""

    def __init__(
        self,
        store: Any,
        rank: int,
        *,
        patience_s: float = math.inf,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`patience_s`: how long to wait for one key. A launcher ends its launch; an own loop needs a limit.

        `waiting`: a context around each wait (`Accelerator.waiting`).
        """
        self._store = store
        self._rank = rank
        self._patience_s = patience_s
        self._waiting = waiting

    def abort(self, record: dict[str, Any]) -> bool:
        """Tell all ranks that this one failed. Returns whether it was the first."""
        text = json.dumps(record)
        return bool(self._store.compare_set(ABORT, "", text) == text.encode())

    def wait(self, key: str) -> None:
        """Sleep until `key` is set. Aborted when a rank fails meanwhile, TimeoutError after `patience_s`."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                with self._waiting():
                    self._store.wait([key], SLICE)
            except RuntimeError as error:
                if not isinstance(error, dist.DistStoreError) and not str(error).startswith(WAITED):
                    raise
                self.check()
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{key}: waited {self._patience_s:.0f} s for the other ranks"
                    ) from None
            else:
                return

    def check(self) -> None:
        """Raise Aborted if a rank has failed."""
        if self._store.check([ABORT]):
            raise Aborted(self._store.get(ABORT).decode())

    def say(self, key: str, value: Any) -> None:
        """Publish a decision under a fresh key."""
        self._store.set(key, json.dumps(value))

    def hear(self, key: str) -> Any:
        """Wait for the decision under `key` and return it."""
        self.wait(key)
        return json.loads(self._store.get(key))

    def agree(self, key: str, value: Any, *, lead: bool) -> Any:
        """The lead's value, on every rank that asks for `key`."""
        if lead:
            self.say(key, value)
            return value
        return self.hear(key)

    def meet(self, key: str, count: int) -> None:
        """Sleep until `count` ranks have called this with `key`."""
        if self._store.add(f"{key}/count", 1) == count:
            self.say(key, 1)
        self.wait(key)

    def all_true(self, key: str, count: int, value: bool) -> bool:
        """Whether `value` is true on every one of `count` ranks."""
        if not value:
            self.say(f"{key}/no", 1)
        self.meet(key, count)
        return not self._store.check([f"{key}/no"])

    def judge(self, key: str, own: Any, rank: int, count: int, rule: Callable[[list[Any]], Any]) -> Any:
        """Each of `count` ranks passes a value. Returns rank 0's `rule` of all of them, on every rank."""
        self.say(f"{key}/{rank}", own)
        if rank == 0:
            self.say(f"{key}/judged", rule([self.hear(f"{key}/{r}") for r in range(count)]))
        return self.hear(f"{key}/judged")

    def start(self, block: int, *, conductor: bool, skip: bool = False) -> bool:
        """Begin a block together; False where it is skipped. Rank 0 starts it once the block before is finished."""
        if conductor:
            self.say(f"start/{block}", 0 if skip else 1)
        return bool(self.hear(f"start/{block}"))

    def finish(self, block: int, participants: int) -> None:
        """Report that this rank has finished a block."""
        if self._store.add(f"done/{block}", 1) == participants:
            self.say(f"finished/{block}", 1)

    def finished(self, block: int) -> None:
        """Sleep until every participant has finished a block."""
        self.wait(f"finished/{block}")
