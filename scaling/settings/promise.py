"""What a run measures of all that it could, and how long it says that takes. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    "largest batches, details, the size sweep, replay, controls, the light probe, then world sizes; where steps mostly "
    "wait for data, details after controls"
)
"""What a budget that is too short leaves out, first to last."""
SCHEMA = 1
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
    schema: int = SCHEMA

    def less(self, part: str) -> Content:
        """The same without a part."""
        return self if part in self.without else replace(self, without=(*self.without, part))

    def has(self, part: str) -> bool:
        """Whether a part is measured."""
        return part not in self.without

    def of_round(self, number: int) -> Content:
        """What one round of a launch measures."""
        return self if self.detailed is None or number in self.detailed else self.without_details()

    def without_details(self) -> Content:
        """What a round without details measures: the baseline, plain and controls."""
        return replace(self, without=tuple(dict.fromkeys((*self.without, *SAMPLED))))

    def holds(self, world_size: int) -> bool:
        """Whether a world size is measured."""
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
