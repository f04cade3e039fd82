"""Listen to a launch: what rank 0 reports, and whether the ranks go on."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from scaling.launchers.launcher import Progress
from scaling.reading import read_text
from scaling.records.launch import Pulse, has_beaten, has_moved, has_started, read_pulse
from scaling.records.paths import LaunchFolder
from scaling.spec.patience import Silence, patience_s

LOOK_S = 1.0
"""Between two looks at the pulses."""
STALE_S = 20.0
"""Pulses that are older say nothing about now: a sampler has died, or hangs with its driver."""
HOSTS_A_LOOK = 16
"""Pulses that are read in a look at most, so that thousands of hosts cost a file system no more than a few."""
SAY_S = 5.0
"""Silence that is worth a word."""


class Vigil:
    """Knows how long a launch has been silent, and how long it may be."""

    def __init__(
        self,
        launch: LaunchFolder,
        now: float,
        *,
        hosts: int,
        timeout_s: float,
        start_s: float,
        progress: Progress,
    ) -> None:
        self._launch, self._progress = launch, progress
        self._hosts, self._turn = hosts, 0
        self._timeout_s, self._start_s = timeout_s, start_s
        self._text = ""
        self._record: dict[str, Any] = {}
        self._pulses: dict[int, Pulse] = {}
        self._blind = False  # whether some rank's beats could not be read in the last look
        self._heard = self._looked = self._moved = now
        self._fresh = float("-inf")

    @property
    def begun(self) -> bool:
        """Whether rank 0 has reported a stage."""
        return bool(self._record)

    def listen(self, now: float) -> None:
        """Take in what is new, and pass it on."""
        with contextlib.suppress(OSError, ValueError):
            text = read_text(self._launch.progress)
            if text != self._text:
                self._record, self._text = json.loads(text), text
                self._heard = now
                self._progress(self._record)
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self._feel(now)
        silent_s = self.silent_s(now)
        if silent_s > SAY_S:
            waited = {"silent_s": silent_s, "patience_s": self.patience_s(now), "moved": self._moves(now)}
            self._progress({"stage": "start", **self._record, **waited})

    def silent_s(self, now: float) -> float:
        """How long there has been no progress."""
        return now - self._heard

    def patience_s(self, now: float) -> float:
        """How long there may be none."""
        seen = Silence(
            begun=self.begun,
            step_s=self._record.get("step_s"),
            expected_s=self._record.get("expected_s"),
            moved_s=None if self._stale(now) else max(0.0, self._moved - self._heard),
        )
        return patience_s(seen, timeout_s=self._timeout_s, start_s=self._start_s)

    def _feel(self, now: float) -> None:
        """Look at hosts in turn until one has beaten; the next look begins with that one."""
        self._blind = False
        for _ in range(min(self._hosts, HOSTS_A_LOOK)):
            host = self._turn % self._hosts
            before, pulse = self._pulses.get(host, {}), read_pulse(self._launch, host)
            self._blind = self._blind or any(one.beats is None for one in pulse.values())
            if pulse != before:
                self._pulses[host], self._fresh = pulse, now
            if has_moved(before, pulse):
                self._moved = now
            beaten = has_beaten(before, pulse)
            if beaten or has_started(before, pulse):
                self._heard = now
            if beaten:
                return
            self._turn += 1

    def _stale(self, now: float) -> bool:
        return now - self._fresh > STALE_S or self._blind

    def _moves(self, now: float) -> bool | None:
        return None if self._stale(now) else now - self._moved < STALE_S
