"""One rank's records of a user's loop. The head with the plan is written once the loop has run a few steps.

An own loop is described as a plan, so that the analysis reads it as it reads a run.

Which steps of an own loop are recorded, and as which arm. The step's number decides, the same on every rank.

Steps after the warm-up fall into slots of ROUND_STEPS. A slot that is taken (records.format.generation) is a round: one
block of consecutive steps of every arm, in random order, with plain twice for the A/A floor.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

from scaling.errors import let_go
from scaling.records import files
from scaling.records.format import ClockRecord, EndRecord, PauseRecord, RecordedBlock, generation
from scaling.settings.parallel import Parallel
from scaling.settings.plan import OWN_LOOP, SCHEMA, Plan, Trial
from scaling.settings.run import Measure, Model, Spec, Tracking
from scaling.settings.schedule import PLAIN, PROBE
from scaling.settings.topology import Topology
from scaling.version import __version__
from scaling.worker.accelerator import cuda
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.measure.recorder import Recorder
from scaling.worker.parallel.guard import words
from scaling.worker.probe.agreement import FIRST_SLOT, Agreement, Clocks
from scaling.worker.probe.follow import Followed
from scaling.worker.probe.phases import Phases
from scaling.worker.session.session import Session, cores_of_host

WARMUP = 5
"""Steps skipped at the start: DDP rebuilds its buckets in the second one, and other things are made lazily."""
_ARMS = ((PLAIN, False, 3), (PLAIN, False, 3), (PROBE, False, 2), (PROBE, True, 2))
"""(arm, detailed, steps). A detailed step costs some 0.4 ms of CPU time per bucket, so there are few. Two is the
minimum: the first step of a block gives a begin, and each later one a period."""
ROUND_STEPS = sum(steps for _, _, steps in _ARMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A block of consecutive steps."""

    id: int
    round: int
    arm: str
    detailed: bool
    first: int
    """Number of its first step, counted from 0."""
    steps: int

    @property
    def stamped(self) -> bool:
        """Whether it takes phase stamps."""
        return self.arm == PROBE


def round_of(slot: int) -> tuple[Planned, ...]:
    """The blocks of a slot, in order; none where the slot is not taken."""
    if slot % 2 ** generation(slot):
        return ()
    order = list(_ARMS)
    random.Random(f"own/{slot}").shuffle(order)
    blocks: list[Planned] = []
    first = WARMUP + slot * ROUND_STEPS
    for number, (arm, detailed, steps) in enumerate(order, slot * len(_ARMS)):
        blocks.append(Planned(id=number, round=slot, arm=arm, detailed=detailed, first=first, steps=steps))
        first += steps
    return tuple(blocks)


def slot_of(step: int) -> int:
    """The slot of a step; below 0 in the warm-up."""
    return (step - WARMUP) // ROUND_STEPS


NAME = "own loop"
"""What the topology and the measure are called in results."""

MEASURE = Measure(
    name=NAME,
    rounds_min=1,
    rounds_max=1,
    steps=ROUND_STEPS,
    lead_in=0,
    warmup_max=WARMUP,
    target_half_width=None,
    budget_s=0.0,
    fabric_bytes_max=2**22,
    step_timeout_s=60.0,
)


def _name(module: torch.nn.Module) -> str:
    if isinstance(module, torch.nn.ModuleList):  # stages of a pipeline
        return _name(module[0])
    kind = type(getattr(module, "_orig_mod", module))
    return kind.__name__.removeprefix("FSDP") if issubclass(kind, FSDPModule) else kind.__name__


def _tf32(precision: str, device: str) -> str:
    tf32 = precision == "fp32" and device == cuda.TYPE and cuda.matmul_tf32()
    return "tf32" if tf32 else precision or "fp32"


def steps_before(optimizers: Iterable[torch.optim.Optimizer], steps: int) -> int:
    """Steps that an optimizer has taken beside the last `steps`, by its own count; -1: it has none on the host."""
    states = [state for each in optimizers for state in each.state.values()]  # of MADGRAD a tensor, too
    counts = [state.get("step") for state in states if isinstance(state, Mapping)]
    on_host = [int(c) for c in counts if isinstance(c, int | float) or (torch.is_tensor(c) and c.is_cpu)]
    return max(0, max(on_host) - steps) if on_host else -1


def process_start() -> dict[str, int]:
    """When this process started; nothing where the kernel does not tell."""
    with let_go(OSError, ValueError, IndexError):
        stat = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
        return {"process_ns": now_ns() - int(1e9 * up_s), "process_unix_ns": time.time_ns() - int(1e9 * up_s)}
    return {}


FLUSH_S = 1.0


class LoopFile:
    """The rank file of an own loop. It exists from the first whole block on."""

    def __init__(
        self,
        followed: Followed,
        session: Session,
        agreement: Agreement,
        clocks: Clocks,
        phases: Phases,
        *,
        batch: int | None,
        name: str | None = None,
    ) -> None:
        """`batch`: samples per rank and step; None: the most frequent one of `samples`.

        `name`: what reports call the model; None: its class.
        """
        self._name = name
        self._followed, self._session, self._agreement = followed, session, agreement
        self._clocks, self._phases, self._batch = clocks, phases, batch
        self.samples: Counter[int] = Counter()
        """How often a step had so many samples, while the usual number is unknown."""
        self._recorder: Recorder | None = None
        self.waiting: list[ClockRecord | PauseRecord] = []
        """Comparisons of clocks and pauses, until they are written between two rounds, where that disturbs no block."""

    @property
    def begun(self) -> bool:
        """Whether there is a file yet."""
        return self._recorder is not None

    def block(self, recorded: RecordedBlock, steps: int) -> None:
        """Record a whole block of the loop, after so many steps; before the first one, the file's head."""
        recorder = self._recorder or self._begin(recorded.block.accumulation, steps)
        batch = self._batch or 0
        block = dataclasses.replace(recorded.block, world_size=self._session.world, batch=batch)
        recorder.block(dataclasses.replace(recorded, block=block))

    def look(self, slot: int) -> None:
        """Between two rounds: compare clocks, if ranks run on several kernels and it is time.

        Every rank decides by the slot's number alone, since one without a file has to take part too.
        """
        self._clocks.look(slot, self.waiting.append)
        self._write()

    def end(self, error: BaseException | None, steps: int) -> None:
        """Record how the loop ended; `error` is the exception that ended it, if any."""
        if self._recorder is None:
            return
        fine = error is None or (isinstance(error, SystemExit) and not error.code)
        text = "" if error is None or fine else words(error).partition("\n")[0]
        state, blocks = "done" if fine else "failed", self._recorder.blocks
        self._write()
        self._recorder.note(EndRecord(state=state, steps=steps, error=text, blocks=blocks))

    def where(self, steps: int, folder: Path) -> str:
        """Where the run is and how to read it, after the last step; or why there is none."""
        if self._recorder is None:
            few = f"the loop ended after {steps} steps, before the first round of ten was whole"
            return f"nothing was recorded: {few}; train for more steps (60 or more)"
        place = folder
        with let_go():  # it is elsewhere, or the working directory is gone
            place = folder.relative_to(Path.cwd())
        return f"`scaling analyze {place}` reports the run"

    def forget(self) -> None:
        """Write nothing more."""
        self._recorder = None

    def close(self) -> None:
        """Flush what the disk has room for, and close."""
        if self._recorder is not None:
            with let_go():
                self._recorder.close()

    def _begin(self, accumulation: int, steps: int) -> Recorder:
        """Write what is known of the loop only after a few steps."""
        self._phases.looking = False
        if self._batch is None:
            self._batch = self.samples.most_common(1)[0][0] if self.samples else 0
        plan, session = self._plan(self._batch, accumulation), self._session
        apart = {} if self._followed.sends_buffers else {"buffers_bytes": 0}
        session.record_environment(plan.spec, self._followed.module, **apart)
        groups: dict[int, Sequence[int]] = {session.world: range(session.world), 1: [session.rank]}
        groups |= self._followed.groups()
        head = session.head(
            groups,
            plan=files.encode(plan),
            cores=cores_of_host(),
            buckets=tuple(self._followed.sizes()),
            steps_before=steps_before(self._phases.optimizers.values(), steps),
            **process_start(),
        )
        self._recorder = Recorder(session.folder.rank(session.rank), head, flush_s=FLUSH_S)
        self._clocks.look(FIRST_SLOT, self.waiting.append)  # for a loop that ends within its first round
        self._write()
        return self._recorder

    def _plan(self, batch: int, accumulation: int) -> Plan:
        """One trial at the group's size. `batch`: samples per rank and step, 0 where unknown."""
        followed, agreement, world = self._followed, self._agreement, self._session.world
        device, settings = next(followed.module.parameters()).device.type, followed.settings()
        hosts, ranks_per_host = len(set(agreement.hosts)), max(Counter(agreement.hosts).values())
        spec = Spec(
            model=Model(name=self._name or _name(followed.module), target="", args={}),
            topology=Topology(
                name=NAME,
                kind="local",
                hosts=hosts,
                ranks_per_host=ranks_per_host,
                device=device,
                backend=followed.backend,
            ),
            world_sizes=(world,),
            mode="weak",
            batch_per_rank=batch,
            global_batch=batch * settings.get("parallel", Parallel()).mesh(world).data_parallel,
            precision=_tf32(self._phases.precision, device),
            measure=MEASURE,
            accumulation_steps=accumulation,
            threads=torch.get_num_threads(),
            tracking=Tracking(mode="disabled"),
            **settings,
        )
        return Plan(
            schema=SCHEMA,
            id=agreement.id,
            created=agreement.created,
            version=__version__,
            spec=spec,
            trials=(Trial(world_size=world, hosts=hosts, batch=batch),),
            source=OWN_LOOP,
        )

    def _write(self) -> None:
        while self._recorder is not None and self.waiting:
            self._recorder.note(self.waiting.pop(0))
