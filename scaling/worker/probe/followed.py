"""The seam between a probe and the model that it follows, however that is trained over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.strategy import Detail


class Followed(Protocol):
    """A model that is trained over ranks in a user's loop."""

    members: list[int]
    """Its ranks in the default group. Their places in it are the ranks of the records."""

    @property
    def reduces_behind(self) -> bool:
        """Whether a rank waits for gradients in C++, between the end of backward's compute and of backward."""

    @property
    def root(self) -> torch.nn.Module:
        """What the loop calls, without torch.compile: a wrapper, or the sharded module itself."""

    @property
    def module(self) -> torch.nn.Module:
        """The user's own module."""

    @property
    def backend(self) -> str:
        """The back end that carries the gradients."""

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes, without autocast."""

    @property
    def sends_buffers(self) -> bool:
        """Whether forwards may begin with a broadcast of the buffers."""

    def reduces(self) -> bool:
        """Whether the backward of the forward that begins now completes the gradients' reduction."""

    def communicators(self) -> list[Any]:
        """The process groups that it sends over."""

    def withheld(self, device: Accelerator) -> str:
        """Why its collectives are not to be stamped (BlockRecord.withheld), as this rank sees it."""

    def detail(self, device: Accelerator, *, detailed: bool) -> Detail | None:
        """What a stamped block records of communication; None: nothing."""

    def sizes(self) -> list[int]:
        """Bytes of each bucket or unit."""

    def groups(self) -> Mapping[int, Sequence[int]]:
        """Communicators of this rank by their key in the records, beside the one of all ranks, with their ranks."""

    def settings(self) -> dict[str, Any]:
        """Fields of the Spec that say how it is trained over ranks."""

    def refused(self) -> str:
        """Why the model cannot be followed; empty where it can."""

    def no_baseline(self) -> str:
        """Why `Probe.baseline` measures nothing; empty where it does."""
