"""The plan of a run: its trials and the ranks that work together in them. Pure: no I/O, no torch.

A trial is one world size. Where ranks are spread over the hosts, a trial runs on as many disjoint sub-groups of the
launch as fit, all at the same time. Few ranks stand idle then, and every host is measured.

Beside it: what a run measures of all that it could, how long it says that takes, how something ended (a case, a trial,
a launch), and what one command line asks for.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from scaling.settings.bounds import Between, Named, NotEmpty
from scaling.settings.run import FOLLOWED, TRACES, Kind, Spec

DETAILS, SWEEP, REPLAYS, CONTROLS = ("details", "the size sweep", "replay", "controls")
LIGHT = "the light probe"
IN_WORDS = {
    DETAILS: "details (half the batch, DDP alone, buckets, roofline)",
    SWEEP: "the size sweep",
    REPLAYS: "replay",
    CONTROLS: "controls (second blocks)",
    LIGHT: "the light probe",
}
SAMPLED = (DETAILS, SWEEP, REPLAYS)
"""What only some rounds have, where the files of all hosts would exceed their bound (scaling.settings.sample)."""
ORDER = (
    "largest batches, then details, the size sweep and replay in every round but the first, then all of details, the "
    "size sweep, replay, controls, the light probe, then world sizes; where steps mostly wait for data, controls go "
    "first and details last of these"
)
"""What a budget that is too short leaves out, first to last."""
CONTENT_SCHEMA = 1
"""Version of content.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a launch measures. The defaults are all that the settings ask for."""

    without: tuple[str, ...] = ()
    """Some of DETAILS, SWEEP, REPLAYS, CONTROLS, LIGHT."""
    batch_most: int | None = None
    """Cases with a larger batch are left out; None: no case is."""
    world_sizes: tuple[int, ...] | None = None
    """World sizes that are measured; None: all of the plan's."""
    detailed: tuple[int, ...] | None = None
    """Numbers of the rounds that have the parts in SAMPLED; None: all of a launch's rounds."""
    whole_s: float | None = field(default=None, compare=False)
    """A `measure.budget_s` that would hold all that the settings ask for; None: not known."""
    schema: int = CONTENT_SCHEMA

    def less(self, *parts: str) -> Content:
        """The content without some parts."""
        return replace(self, without=tuple(dict.fromkeys((*self.without, *parts))))

    def without_details(self) -> Content:
        """What a round without details measures: the baseline, plain and controls."""
        return self.less(*SAMPLED)

    def has(self, part: str) -> bool:
        return part not in self.without

    @property
    def has_sampled(self) -> bool:
        """Whether anything is measured that some rounds can be without."""
        return any(map(self.has, SAMPLED))

    def in_round(self, number: int) -> Content:
        """What one round of a launch measures."""
        return self if self.detailed is None or number in self.detailed else self.without_details()

    def holds(self, world_size: int) -> bool:
        return self.world_sizes is None or world_size in self.world_sizes

    def has_batch(self, batch: int) -> bool:
        """Whether the cases of a batch are measured."""
        return self.batch_most is None or batch <= self.batch_most


WHOLE = Content()


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How long a run takes, as it was said at its start, s."""

    tried_s: float
    """What the tryout took."""
    start_s: float
    """From a launch's command to its first step."""
    search_s: float
    """The search for the largest batch, with its starts; 0 without one."""
    warmup_s: float
    rounds_s: float
    end_s: float
    """Analysis and reports."""
    launches: int

    @property
    def seconds(self) -> float:
        """All of it."""
        launch_s = self.start_s + self.warmup_s + self.rounds_s
        return self.tried_s + self.search_s + self.launches * launch_s + self.end_s


Ranks = tuple[int, ...]

SCHEMA = 1

PLAN_DIGEST = "SCALING_PLAN"
"""The variable that tells the ranks of a launch the digest of its plan, since somebody may replace the file."""
RANKS_MAX = 2**14
"""Ranks of a launch, and of a job whose traces are read: every one of them is looked for."""

HARNESS, OWN_LOOP, TRACE = SOURCES = ("harness", "own_loop", "trace")
"""Where the records of a plan come from: `scaling run`, a Probe in another training loop, profiler traces, or logs that
others have published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One world size of a run."""

    world_size: Annotated[int, Between(1, RANKS_MAX)]
    hosts: Annotated[int, Between(1, RANKS_MAX)]
    batch: Annotated[int, Between(0, 2**40)]
    """Samples a rank and optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a worker needs; written to plan.json."""

    schema: int = SCHEMA
    id: Annotated[str, Named()]
    created: str
    version: str
    spec: Spec
    trials: Annotated[tuple[Trial, ...], NotEmpty("one world size")]
    variant: Spec | None = None
    """Other settings of a verification, which runs only plain steps of `spec` and of these, in turns."""
    commit: str = ""
    """Version of the code in the folder that the run was started from (`git describe`)."""
    source: str = HARNESS
    """One of SOURCES."""
    content: Content = WHOLE
    """What is measured of all that the settings ask for."""
    promise: Promise | None = None
    """How long the run takes, as it was said at its start; None where no step was timed."""

    @property
    def kind(self) -> Kind:
        return {OWN_LOOP: FOLLOWED, TRACE: TRACES}.get(self.source, self.spec.kind)

    @property
    def ranks(self) -> int:
        """Processes of a launch: enough for the largest trial."""
        return max(t.world_size for t in self.trials)

    @property
    def hosts(self) -> int:
        return max(t.hosts for t in self.trials)

    def baseline(self, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
        """Trials to measure beside `trials`: strong scaling needs one rank with the whole batch as its baseline.

        A launch that resumes a run measures this baseline again, since arms of two launches cannot be paired.
        """
        if self.spec.mode != "strong" or self.variant is not None or any(t.world_size == 1 for t in trials):
            return ()
        return tuple(t for t in self.trials if t.world_size == 1)

    def sub_groups(self, world_size: int, ranks: int | None = None) -> tuple[Ranks, ...]:
        """The ranks that train together at a world size, all sub-groups at the same time; the first is reported.

        There is one sub-group where ranks are packed, and one at world size 1: the baseline runs without neighbours.
        `ranks`: number of ranks of the launch, if not the plan's.
        """
        together = self.spec.topology.spread and world_size > 1 and not self.spec.kind.by_cases
        count = (self.ranks if ranks is None else ranks) // world_size if together else 1
        return tuple(tuple(range(g * world_size, (g + 1) * world_size)) for g in range(count))

    def pairings(self, ranks: int | None = None) -> tuple[tuple[Ranks, ...], ...]:
        """Pairings of ranks on two hosts. The pairs of one pairing are disjoint.

        All pairings together pair each host with two others. Pairs are neighbours on the ring of ranks, which goes
        round the hosts: first every other pair, then the rest, then the pair that closes a ring of odd length. Empty
        where ranks are packed or there are fewer than 3 hosts.
        """
        count, topology = self.ranks if ranks is None else ranks, self.spec.topology
        enough = topology.spread and topology.hosts_of(count) >= 3
        if not enough or self.spec.kind.by_cases or self.variant is not None:
            return ()
        ring = [(r, (r + 1) % count) for r in range(count)]
        even = count - count % 2
        apart = [
            tuple((min(p), max(p)) for p in pairs if topology.host_of(p[0]) != topology.host_of(p[1]))
            for pairs in (ring[0:even:2], ring[1:even:2], ring[even:])
        ]
        return tuple(pairs for pairs in apart if pairs)

    def nominal_bit_s(self, world_size: int) -> float | None:
        """The topology's nominal rate of a ring at a world size, with all sub-groups at work; None if not known."""
        at_work = sum(map(len, self.sub_groups(world_size)))
        return self.spec.topology.nominal_bit_s(world_size, at_work)


def run_id(now: dt.datetime, salt: str) -> str:
    """A fresh id, `<date>-<time>-<hash>`."""
    text = hashlib.sha256(f"{salt}{now.isoformat()}{os.getpid()}".encode()).hexdigest()[:8]
    return f"{now:%Y%m%d-%H%M%S}-{text}"


def make_plan(
    spec: Spec, *, run_id: str, created: str, version: str, commit: str = "", source: str = HARNESS
) -> Plan:
    """The plan of a checked spec."""
    trials = tuple(
        Trial(world_size=n, hosts=spec.topology.hosts_of(n), batch=spec.batch_at(n)) for n in spec.world_sizes
    )
    return Plan(
        id=run_id, created=created, version=version, spec=spec, trials=trials, commit=commit, source=source
    )


ENDED_SCHEMA = 1
"""Version of cases.json."""
LEFT_OUT = "left_out"
"""Status of what the budget leaves no time for, as was said."""
SETTLED = ("done", LEFT_OUT)
"""Statuses of what is neither missing nor failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The status in which something ended and, where it failed, the error and the rank that had it."""

    status: str
    error: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Ended):
    """How one case ended at one world size: fits, oom, failed or left_out."""

    world_size: int
    case: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Contents of one launch's cases.json."""

    schema: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One checked request: what to run, where to put it, and the YAML it was composed to."""

    spec: Spec
    run_dir: Path | None
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What one command line asks for; several in a multirun. Empty when Hydra only printed something."""

    items: tuple[Request, ...]
    multirun: bool
