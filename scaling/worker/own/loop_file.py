"""One rank's records of a training loop: its head and plan are written once it has run a few steps."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from scaling.files import write_json
from scaling.store import LaunchFolder
from scaling.worker.devices import Device
from scaling.worker.environment import describe
from scaling.worker.own.agreement import Agreement, head
from scaling.worker.own.clocks import FIRST_SLOT, Clocks
from scaling.worker.own.facts import describe_loop
from scaling.worker.own.phases import Phases
from scaling.worker.recorder import Recorder, Usage

FLUSH_S = 5.0


class LoopFile:
    """The rank file of an own loop; `begun` from its first whole block on."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        agreement: Agreement,
        folder: LaunchFolder,
        clocks: Clocks,
        phases: Phases,
        device: Device,
        batch: int | None,
    ) -> None:
        """`batch`: samples a rank and step; None: what most of the first steps had (`sample`)."""
        self._ddp, self._agreement, self._folder, self._clocks = ddp, agreement, folder, clocks
        self._phases, self._device, self._batch = phases, device, batch
        self._samples: Counter[int] = Counter()
        self._recorder: Recorder | None = None
        self._early: list[dict[str, Any]] = []
        """Comparisons of clocks from before there was a file."""

    @property
    def begun(self) -> bool:
        """Whether there is a file yet."""
        return self._recorder is not None

    def sample(self, count: int) -> None:
        """A step's samples, while it is not known how many are usual."""
        self._samples[count] += 1

    def block(
        self,
        fields: dict[str, Any],
        steps: Sequence[Sequence[int]],
        collectives: Sequence[Sequence[Sequence[int]]],
        usage: Usage,
    ) -> None:
        """One whole block of the loop. The first brings the file's head along."""
        recorder = self._recorder or self._begin(fields["accumulation"])
        own = {"world_size": self._agreement.world, "batch": self._batch}
        recorder.block({**fields, **own}, steps, collectives, usage)

    def look(self, slot: int) -> None:
        """Between two rounds: compare clocks where ranks run on several kernels and it is time to.

        By the slot's number alone, on every rank: one that has no file yet has to take part.
        """
        self._clocks.look(slot, self._note)

    def pause(self, *, time_ns: int, gap_ns: int) -> None:
        """The loop did something else since the last step."""
        if self._recorder is not None:
            self._recorder.note("pause", time_ns=time_ns, gap_ns=gap_ns)

    def end(self, error: BaseException | None, steps: int) -> None:
        """How the loop ended. `error`: what ended it, if anything did."""
        if self._recorder is None:
            return
        if error is None:
            error = getattr(sys, "last_value", None)  # at the process' end: what ended it
        fine = error is None or (isinstance(error, SystemExit) and not error.code)
        text = "" if fine else f"{type(error).__name__}: {error}".strip().splitlines()[0]
        self._recorder.note("end", state="done" if fine else "failed", steps=steps, error=text)

    def close(self) -> None:
        """Whatever is on its way to the disk, as far as there is room."""
        if self._recorder is not None:
            with contextlib.suppress(OSError):
                self._recorder.close()

    def _begin(self, accumulation: int) -> Recorder:
        """What can be said of the loop only once it has run a few steps."""
        self._phases.looking = False
        if self._batch is None:
            self._batch = self._samples.most_common(1)[0][0] if self._samples else 0
        rank = self._agreement.rank
        plan = describe_loop(
            self._ddp,
            self._agreement,
            batch=self._batch,
            accumulation=accumulation,
            precision=self._phases.precision,
        )
        about = describe(plan.spec, rank, self._agreement.host, self._ddp.module, self._device)
        write_json(self._folder.env(rank), about)
        heading = head(self._agreement, self._folder, plan)
        self._recorder = Recorder(self._folder.rank(rank), heading, flush_s=FLUSH_S)
        for record in self._early:
            self._recorder.note(**record)
        self._clocks.look(FIRST_SLOT, self._note)  # for a loop that ends within its first round
        return self._recorder

    def _note(self, kind: str, **fields: Any) -> None:
        """A line; kept for when there is a file."""
        if self._recorder is None:
            self._early.append({"kind": kind, **fields})
        else:
            self._recorder.note(kind, **fields)
