"""A run: what was measured, how it ended, and the whole of analysis.json."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.machine import Fabric, HostSpeed, RankSpread, RooflineResult
from scaling.analysis.results.measured import Measured
from scaling.analysis.results.point import Point
from scaling.analysis.results.study import InferenceCase, LargestBatch, StrategyResult, Study, TrainingCase
from scaling.analysis.results.traces import Traced
from scaling.analysis.results.verdicts import Verdict
from scaling.records.run import TrialStatus
from scaling.settings.plan import SETTLED

CONTENDED = "contended: "
"""A warning that begins so says that others took processor time from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What was measured, on what."""

    id: str
    model: str
    topology: str
    precision: str
    mode: str
    task: str
    backend: str
    device: str
    started: str
    duration_s: float
    synthetic: bool
    launches: int
    device_name: str = ""
    """The device's own name; empty where it was not recorded."""
    ranks_per_device: int = 1
    """Ranks that share a device, where it has most of them: their efficiency is that of shared silicon."""
    binding: str = ""
    """How ranks were bound to the cores near their devices, or why not; empty where nobody tried."""
    simulated: bool = False
    """Whether the devices were simulated: all times are those of a model of them."""

    @property
    def unreal(self) -> str:
        """What of the run is not real, in two words; empty where all of it is."""
        both = ((self.simulated, "SIMULATED accelerators"), (self.synthetic, "SYNTHETIC compute"))
        return ", ".join(name for holds, name in both if holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """The head of a file with results of one run."""

    schema: int
    run: RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInDetails:
    """What a rank computes (forward and backward, without its waits) in steps without details and with them."""

    rank: int
    light_ms: Measured | None
    detailed_ms: Measured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What stamps of single collectives cost the step, at the largest world size."""

    over_light: Measured | None
    """The step with details over the one with stamps of its phases alone, paired by round."""
    disturbs: bool
    """Whether the compute of any rank surely differs by more than a cause needs, and than equal blocks differ."""
    ranks: tuple[RankInDetails, ...]
    """Those whose compute differs most."""
    unused: str = ""
    """Why no cause rests on details; empty where they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What reduces confidence in the numbers."""

    contended_blocks: int
    dropped_samples: int
    """Steps that were written and belong to no whole block, or to one that was left out."""
    clock_bound_us: float | None
    """Largest error of the other ranks' clocks against rank 0's; None where they were not compared."""
    device_clock_bound_us: float | None = None
    """Largest error of device events in host time; None where stamps are the host's own."""
    details: Details | None = None
    """None where no blocks with and without details can be compared."""
    dropped_blocks: int = 0
    """Blocks that are missing, or were left out because what they say cannot be; `warnings` name them."""
    reached: tuple[str, ...] = ()
    """How precisely the efficiency is known, and what a smaller interval would take."""
    warnings: tuple[str, ...] = ()

    @property
    def contended(self) -> tuple[str, ...]:
        """How other programs, or other virtual machines, took processor time from the run; empty where none did."""
        return tuple(w.removeprefix(CONTENDED) for w in self.warnings if w.startswith(CONTENDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Memory of one rank at the first and the last block of a launch, and its growth for each step."""

    launch: int
    rank: int
    kind: str
    """`host` or `device`."""
    begin_bytes: int
    end_bytes: int
    steps: int
    growth_bytes_per_step: Measured
    leak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(RunResults):
    """The whole of analysis.json."""

    points: tuple[Point, ...]
    fabric: Fabric
    inference: tuple[InferenceCase, ...]
    verdicts: tuple[Verdict, ...]
    quality: Quality
    trials: tuple[TrialStatus, ...]
    """Here `launches` are those that the trial's numbers come from."""
    roofline: RooflineResult | None = None
    memory: tuple[MemoryGrowth, ...] = ()
    trace: tuple[Traced, ...] | None = None
    """From profiler traces: what they show besides, one object for each world size. None for a measured run."""
    training: tuple[TrainingCase, ...] = ()
    largest_batch: tuple[LargestBatch, ...] = ()
    hosts: tuple[HostSpeed, ...] = ()
    """Hosts compared with each other; empty unless ranks were spread over them."""
    ranks: RankSpread | None = None
    """The own steps of the ranks, where there are more than a table can show."""
    strategies: tuple[StrategyResult, ...] = ()
    """Measured side by side (vary.parallel); the first's points are `points`. Empty where one was measured."""
    study: Study | None = None
    """In study.json: the separate launches that the results were made from."""

    @property
    def whole(self) -> bool:
        """Whether every trial and case is done, or left out by the budget, and no block is missing or was dropped."""
        statuses = [trial.status for trial in self.trials]
        statuses += [case.status for cases in (self.inference, self.training) for case in cases]
        return set(statuses) <= set(SETTLED) and not self.quality.dropped_blocks
