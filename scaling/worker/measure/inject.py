"""Inject faults, so that the analysis can be tested on known causes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import torch

from scaling.settings.run import Inject
from scaling.settings.schedule import BARE_ONE, FABRIC, PAIRS, REPLAY, Block
from scaling.worker.accelerator.clock import sleep

_BUSY = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with the worker
os.kill(os.getpid(), signal.SIGSTOP)
while True: pass
"""


class Faults:
    """The stalls of one rank and the busy processes of one host. They are off until a block switches them on."""

    def __init__(
        self, inject: Inject, *, rank: int, first_on_host: bool, stall: Callable[[float], None] = sleep
    ) -> None:
        """`stall`: makes the device late by so many seconds, in the phases in which it is the device that works."""
        self._inject, self._late = inject, stall
        self._mine = inject.rank is None or inject.rank == rank
        self._blocks = 0
        self._on = False
        count = inject.contention if first_on_host else 0
        self._busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]

    def begin(self, block: Block) -> None:
        """Switch on the faults of this block."""
        self._blocks += 1
        limit = self._inject.fail_after_blocks
        if self._mine and limit is not None and self._blocks > limit:
            raise RuntimeError(f"injected failure after {limit} blocks")
        self._on = block.trial.world_size > 1 and block.arm not in (BARE_ONE, REPLAY, FABRIC, PAIRS)
        if self._on:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Switch everything off."""
        if self._on:
            self._signal(signal.SIGSTOP)
        self._on = False

    def close(self) -> None:
        for process in self._busy:
            process.kill()
            process.wait()

    def input(self) -> None:
        """Stall while the batch is fetched."""
        self._stall(self._inject.input_ms)

    def compute(self) -> None:
        """Stall in the forward pass."""
        self._stall(self._inject.compute_ms, self._late)

    def backward(self, loss: torch.Tensor) -> None:
        """Stall in the backward pass of this loss, before its first gradient is computed."""
        if self._stalls(self._inject.backward_ms):
            loss.register_hook(lambda _gradient: self._stall(self._inject.backward_ms, self._late))  # type: ignore[no-untyped-call]

    def optimizer(self) -> None:
        """Stall in the optimizer's step."""
        self._stall(self._inject.optimizer_ms, self._late)

    def host(self) -> None:
        """Stall after the optimizer."""
        self._stall(self._inject.host_ms)

    @property
    def wrong_no_sync(self) -> bool:
        """Whether every micro-step of this block reduces gradients."""
        return self._on and self._inject.wrong_no_sync

    def _stalls(self, milliseconds: float) -> bool:
        return self._on and self._mine and milliseconds > 0

    def _stall(self, milliseconds: float, stall: Callable[[float], None] = sleep) -> None:
        if self._stalls(milliseconds):
            stall(milliseconds / 1e3)

    def _signal(self, number: int) -> None:
        for process in self._busy:
            process.send_signal(number)


NO_FAULTS = Faults(Inject(), rank=0, first_on_host=False)
