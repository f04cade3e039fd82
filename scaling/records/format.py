"""What a worker writes: one JSON line a record. Workers write these types and the reader decodes them.

A rank file holds, in this order,

    {"t":"head", "schema":2, "rank":..., "host":..., "groups":{...}}    HeadRecord, once
    {"t":"clock", ...}                                                  ClockRecord: offset to rank 0's clock
    {"t":"steps", "b":block, "i":step, "n":..., "z":"..."}              PackedRecord: StepRows and CollectiveRows
    {"t":"block", ...}                                                  BlockRecord, after the block's last step
    {"t":"memory", "b":block, ...}                                      MemoryRecord
    {"t":"pause", ...}                                                  PauseRecord, own loops only
    {"t":"end", ...}                                                    EndRecord, the last line

Every line but a step's ends in a checksum (records.encoding). A block line lands after its steps, so a block without
one was cut off and is not used. Keys whose value is the default are left out. Stamps are CLOCK_MONOTONIC_RAW of the
rank's own host, in ns; 0 means "not taken". The harness's own loop and a user's loop (Probe) leave the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

DISTURBS, UNKNOWN_STREAM = "disturbs", "unknown stream"
"""BlockRecord.withheld: stamps of collectives would hold up other streams; nobody tells where collectives run."""

SAVE, ASYNC_SAVE, EVALUATION = "save", "async save", "evaluation"
COLLECTION, ALLOCATOR = "garbage collection", "allocator retry"
BESIDE_SAVE, BASELINE = "beside an async save", "baseline"
"""PauseRecord.kind, where a probe recognises what a loop does; the last two are how long it saved beside steps,
and measured what a loop does not show."""

PAUSES_SINGLE = 10_000
"""PauseRecords of one kind that stand for one each; as many follow for two each, for four, and so on."""

SCHEMA = 2


class PlainRow(NamedTuple):
    """Stamps of a step without phases, ns."""

    begin_ns: int
    end_ns: int


class StepRow(NamedTuple):
    """Stamps and durations of a step, ns. Durations are summed over the micro-steps of accumulation.

    The rows of a block are written without the fields at their end in which all of them have the default.
    """

    begin_ns: int
    end_ns: int
    input_ns: int
    """Duration, like the next three."""
    forward_ns: int
    backward_ns: int
    """Time inside backward(), so waiting for communication is included."""
    optimizer_ns: int
    compute_end_ns: int
    """Stamp: the last micro-step's backward has computed all its gradients."""
    sync_end_ns: int
    """Stamp: the last micro-step's gradients are reduced and backward() has returned."""
    earlier_wait_ns: int = 0
    """Duration: waits for communication in earlier micro-steps, which no_sync would avoid."""
    buffer_wait_ns: int = 0
    """Duration: the part of forward in which DDP broadcasts the buffers (such as BatchNorm's) from its first rank."""
    buffer_begin_ns: int = 0
    """Stamp: the step's last such broadcast begins."""
    buffer_end_ns: int = 0
    """Stamp: it is complete on this rank, and the model's own forward begins."""
    forward_wait_ns: int = 0
    """Duration: the part of forward in which a sharded module waits for its units' parameters."""
    backward_wait_ns: int = 0
    """Duration: the part of backward in which it waits for parameters or for the reduction of gradients."""
    tokens: int = -1
    """Own loops: how many tokens (or samples) this rank's step had, as the loop told; -1: it told none."""
    input_wait_ns: int = 0
    """Own loops: the part of input that is waits for communication."""
    optimizer_wait_ns: int = 0
    """Own loops: that part of optimizer, such as gradients that the loop reduces by itself."""
    host_wait_ns: int = 0
    """Own loops: that part of the step's rest."""
    squared: int = 0
    """Own loops: the sum of the squares of its sequences' lengths, as the loop told."""


class CollectiveRow(NamedTuple):
    """One collective of a step, written as steps are. Its stamps are clock tokens until the block is over, then ns."""

    seq: int
    """Position within the step, the same on every rank."""
    kind: int
    """Index into settings.run.KINDS."""
    group: int
    """The communicator, as a key of HeadRecord.groups: the world size, -k for the k-th pairing of the pairs arm, or
    another number for a communicator of one mesh axis."""
    bytes: int
    """Payload of this rank."""
    ready_ns: int
    """The bucket's last gradient was computed."""
    launch_ns: int
    """The collective was handed to the back end."""
    done_ns: int
    """It was complete on this rank."""
    enqueue_ns: int = 0
    """Host time at which the call that enqueues the collective began, also where the other stamps are a device's.

    0: not taken.
    """
    phase: int = 0
    """Index into settings.schedule.PHASES: the part of the step that it belongs to."""
    unit: int = -1
    """The bucket or the sharded unit that it belongs to, the same on every rank; -1: none is known."""
    calls: int = 1
    """Collectives of the size sweep, enqueued one behind the other, whose time the stamps enclose."""
    wait_ns: int = 0
    """The rank, or its compute stream, began to wait for it; 0: not taken, or it waited for several at once."""
    resume_ns: int = 0
    """It went on."""
    start_ns: int = 0
    """Its communicator's stream came to it, and from here on waits for peers or moves data; 0: not taken."""


AnyStepRow = PlainRow | StepRow
STEP_FIELDS = StepRow._fields
NO_TOKENS: int = StepRow._field_defaults["tokens"]
COLLECTIVE_FIELDS = CollectiveRow._fields
_DEFAULTS = {kind: tuple(kind._field_defaults.values()) for kind in (PlainRow, StepRow, CollectiveRow)}
"""What a row stands for where it ends early: the defaults of its last fields."""
STEP_DEFAULTS, COLLECTIVE_DEFAULTS = _DEFAULTS[StepRow], _DEFAULTS[CollectiveRow]
STEP_WIDTHS, COLLECTIVE_WIDTHS = (
    frozenset(range(len(kind._fields) - len(_DEFAULTS[kind]), len(kind._fields) + 1))
    for kind in (StepRow, CollectiveRow)
)
"""Lengths that such a row may have."""


def shortened(row: AnyStepRow | CollectiveRow) -> tuple[int, ...]:
    """What is written of a row: without the fields at its end that have their default."""
    defaults, width = _DEFAULTS[type(row)], len(row)
    least = width - len(defaults)
    while width > least and row[width - 1] == defaults[width - 1 - least]:
        width -= 1
    return row[:width]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """The first line of a rank file."""

    TAG: ClassVar[str] = "head"

    schema: int
    rank: int
    host: int
    hostname: str = ""
    launch: int = 0
    world: int = 0
    """Ranks of the launch."""
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each group that this rank is in, by the group's key (CollectiveRow.group)."""
    warmup: dict[int, int] = field(default_factory=dict)
    """Warm-up steps by world size."""
    cores: int = 0
    """Cores that the ranks of this host share; 0 if unknown."""
    numa_nodes: int = 0
    """NUMA nodes of this host; 0 if unknown."""
    fed_ns: dict[int, int] = field(default_factory=dict)
    """By world size: duration of a fetch whose batch is ready; -1 without a data loader."""
    plan: dict[str, Any] | None = None
    """Own loops: the plan, since their folder has no plan.json."""
    buckets: tuple[int, ...] = ()
    """Own loops: bytes of DDP's buckets in the order of reduction; together they are the gradients."""
    steps_before: int = -1
    """Own loops: steps that the optimizer had taken before this launch; -1: it does not count them."""
    process_ns: int = 0
    """Own loops: when the process started, as stamps are; 0: unknown."""
    process_unix_ns: int = 0
    """When that was by the calendar, ns since 1970."""
    plan_digest: str = ""
    """Digest of the plan.json that the rank read (records.encoding.digest); empty in own loops."""
    detailed: tuple[int, ...] = ()
    """Rounds that have details, replay and the size sweep; empty: all rounds of the launch (Content.detailed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRecord:
    """A comparison of this rank's clock with rank 0's."""

    TAG: ClassVar[str] = "clock"

    at: str
    """`begin` or `end` of a launch; `slot K` of an own loop."""
    offset_ns: int
    """This rank's clock minus rank 0's."""
    bound_ns: int
    """Largest possible error of the offset."""
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRecord:
    """Consecutive steps of block `b` that have equally many stamps and collectives (records.encoding)."""

    TAG: ClassVar[str] = "steps"

    b: int
    i: int
    """Number of the first of them."""
    n: int
    """How many steps."""
    s: int
    """Length of each step's row, a PlainRow or a StepRow that may end early (`shortened`)."""
    c: int = 0
    """Collectives of each step."""
    w: int = 0
    """Length of each collective's row, which may end early (`shortened`)."""
    z: bytes
    """The integers (records.encoding.pack): for each step its row and then its collectives'. Base64 in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """One whole block on one rank. Its fields are the columns of the `blocks` table."""

    TAG: ClassVar[str] = "block"

    id: int
    """Number of the block, equal on every rank."""
    round: int
    world_size: int
    arm: str
    detailed: bool
    """Whether its steps have CollectiveRows."""
    solo_rank: int
    """bare_one: the rank that ran; else -1."""
    batch: int
    """Samples per rank and step."""
    accumulation: int
    """Micro-steps per step."""
    lead_in: int
    """Steps at the start that were not timed."""
    steps: int
    """Timed steps."""
    begin_ns: int
    end_ns: int
    cpu_ns: int
    """CPU time of the process over the block."""
    thread_cpu_ns: int
    """CPU time of the thread that ran the steps."""
    delayed_ns: int
    """Time that this thread was ready to run and had no core; -1 where the kernel does not tell."""
    make_ns: int = -1
    """Mean time that a data worker took to make one of the block's batches; -1 for synthetic batches."""
    make_cpu_ns: int = -1
    """CPU time of the same."""
    case: int = -1
    """Runs by cases: index of the case (spec.cases). Strategies side by side: that of the strategy; -1 otherwise."""
    peak_bytes: int = -1
    """Runs by cases: the most memory that the process held during the block."""
    withheld: str = ""
    """Why a block that was to be detailed has no CollectiveRows: DISTURBS or UNKNOWN_STREAM. Older files lack it."""
    sent_bytes: int = -1
    """Own loops: bytes of a step's collectives and messages that Python began; -1: not counted. Older files lack it."""
    unclaimed_bytes: int = 0
    """Own loops: those of them that nobody was seen to wait for."""
    polled: int = 0
    """Own loops: collectives of which the loop asked whether they are done, and they were not."""
    unseen_forwards: int = 0
    """Own loops: backwards of models whose forward was not seen, so that it counts as input or host."""
    phases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Own loops: by the loop's names of phases, (ns, of which waits), summed over the steps."""
    parameters: list[tuple[int, int]] = field(default_factory=list)
    """ddp_solo: (bytes, ready ns since the step's begin) of each parameter, mean over the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Memory that the rank held after block `b`."""

    TAG: ClassVar[str] = "memory"

    b: int
    host_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRecord:
    """An own loop did something else between two steps, or a step took far longer than usual."""

    TAG: ClassVar[str] = "pause"

    time_ns: int
    """The end of the step behind it."""
    gap_ns: int
    """From the end of the step before to where this one was entered."""
    step: int = -1
    """Number of that step in the loop; -1: a file of an older version, whose pauses are not read."""
    kind: str = ""
    """What the loop did: as it said, or one of those above; empty: unknown."""
    more_ns: int = -1
    """How long that took; by how much the step was longer than usual where it is unknown."""
    count: int = 1
    """How many of that kind this stands for, with the time of all; its other fields are those of the last."""
    steps: int = 0
    """Beside an asynchronous save: steps that began meanwhile."""
    steps_ns: int = 0
    """How long these took together, without what the loop did beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The launch or the own loop ended."""

    TAG: ClassVar[str] = "end"

    state: str
    """`done` or `failed`."""
    steps: int = 0
    """Steps that a launch recorded, or that an own loop ran."""
    error: str = ""
    blocks: int = -1
    """Blocks in the file; -1: not counted."""


Record = HeadRecord | ClockRecord | PackedRecord | BlockRecord | MemoryRecord | PauseRecord | EndRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBlock:
    """A whole block with its steps, all stamps in ns: what a worker writes at once."""

    block: BlockRecord
    steps: Sequence[AnyStepRow]
    collectives: Sequence[Sequence[CollectiveRow]] = ()
    """Empty, or the collectives of each step."""


def as_line(record: Record) -> dict[str, Any]:
    """A record as its JSON object, without the fields that have their default."""
    line: dict[str, Any] = {"t": record.TAG}
    for each in fields(record):
        value = getattr(record, each.name)
        factory = each.default_factory
        default = each.default if factory is MISSING else factory()
        if value != default:
            line[each.name] = value
    return line


SLOTS_WHOLE = 256
"""An own loop's rounds lie on a grid of slots. Every slot up to this one is taken."""


def generation(slot: int) -> int:
    """g such that around this slot of an own loop every 2^g-th one is taken, which keeps the records bounded.

    Up to any slot, those divisible by its 2^g are evenly spaced from the first step on, and there are
    SLOTS_WHOLE / 2 to SLOTS_WHOLE of them. Rounds of a baseline have numbers below 0.
    """
    return (max(slot, 0) // SLOTS_WHOLE).bit_length()
