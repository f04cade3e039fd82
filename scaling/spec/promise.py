"""What a run measures of all that it could, and how long it says that takes. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

DETAILS, SWEEP, REPLAYS, CONTROLS = ("details", "the size sweep", "replay", "controls")
IN_WORDS = {
    DETAILS: "details (half the batch, DDP alone, buckets, roofline)",
    SWEEP: "the size sweep",
    REPLAYS: "replay",
    CONTROLS: "controls (second blocks, the light probe)",
}
SAMPLED = (DETAILS, SWEEP, REPLAYS)
"""What only some rounds have, where the files of all hosts would exceed their bound (scaling.spec.sample)."""
ORDER = "largest batches, details, the size sweep, replay, controls, then world sizes"
"""What a budget that is too short leaves out, first to last."""
SCHEMA = 1
"""Version of content.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a launch measures. The defaults are all that the settings ask for."""

    without: tuple[str, ...] = ()
    """Some of DETAILS, SWEEP, REPLAYS, CONTROLS."""
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
class Fitted:
    """What fits into a budget."""

    content: Content
    warmup_s: float
    rounds_s: float
    """Rounds and all between them."""
    fits: bool
    """False where even the least content takes longer."""
    enough_s: float
    """A `measure.budget_s` that holds the least content."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How long one step of a batch took in the tryout."""

    batch: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep:
    """A rank's part of a step whose layers are divided over `tensor` ranks."""

    tensor: int
    share: float
    """What it computes, as a share of the step of one rank alone."""
    bytes_a_sample: float
    """What its link carries for divided layers, each way."""
    calls: int
    """Collectives of a micro-step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one process took to start and to run steps of the model: the tryout's answer."""

    start_s: float
    """From the start of the process to the built model."""
    steps: tuple[Sample, ...]
    """Of the first variant, ascending by batch, at least one."""
    variants: tuple[float, ...] = (1.0,)
    """Time of each variant's step over that of the first."""
    make_s: float = 0.0
    """To make a batch, a sample."""
    first_s: float = 0.0
    """What the first step took beyond the later ones, such as compiling."""
    parameters_bytes: int = 0
    bytes_a_sample: float = 0.0
    """Growth of the peak memory with the batch; 0 where it is not known."""
    divided: tuple[DividedStep, ...] = ()
    """By tensor degree; none where no layer is divided, or where that was not timed."""

    def step_s(self, batch: float, variant: int = 0) -> float:
        """A step's time at a batch, on the line through the two nearest that were timed (or from 0)."""
        known = [Sample(batch=0, step_s=0.0), *self.steps]
        above = next((k for k, one in enumerate(known) if one.batch >= batch), len(known) - 1)
        low, high = known[max(0, above - 1)], known[above]
        if above == 1:  # between nothing and the least batch
            return high.step_s * self._times(variant)
        slope = max(0.0, (high.step_s - low.step_s) / (high.batch - low.batch))
        if batch > high.batch:
            # From two small batches a fixed part may be mistaken for growth, or noise for none.
            slope = max(slope, high.step_s / high.batch / 2)
        return max(low.step_s, high.step_s + slope * (batch - high.batch)) * self._times(variant)

    def _times(self, variant: int) -> float:
        return self.variants[variant] if variant < len(self.variants) else self.variants[0]


def left_out(content: Content, *, batches: tuple[int, ...], world_sizes: tuple[int, ...]) -> tuple[str, ...]:
    """What is not measured, in words. `batches`, `world_sizes`: those that are asked for; no batches: not known yet."""
    most = content.batch_most
    large = [n for n in batches if most is not None and n > most]
    sizes = [n for n in world_sizes if not content.holds(n)]
    return (
        *([f"batch {', '.join(map(str, large))}"] if large else []),
        *([f"batches above {most}"] if most is not None and not batches else []),
        *(IN_WORDS[part] for part in content.without),
        *([f"world size {', '.join(map(str, sizes))}"] if sizes else []),
    )
