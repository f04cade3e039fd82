"""What a prediction starts from (Source), what changes (Change), and its assumptions (Lean).

DDP fills buckets in the order in which gradients came in its first step: a bucket is closed by the parameter that
brings it to its limit, and the first may have a limit of its own (torch, csrc/distributed/c10d/reducer.cpp,
compute_bucket_assignment_by_size and Reducer::rebuild_buckets).

Arrays lead with S: the estimate first, then values resampled over rounds. R ranks, K buckets; ns. For a thousand ranks
one phase takes 8 MB (1,001 values a rank), and a prediction needs several of each arm. The rounds that they are means
of take a thirtieth of it, so only these are kept (`ByRank`), and the means are computed for a slice of the S at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.curve import Hops, Points
from scaling.analysis.statistics.rounds import Floats, UnknownQuantityError
from scaling.settings.run import DEFAULT_BUCKET_MB

SLICE_VALUES = 1 << 18
"""Numbers in an array over resampled rounds, ranks and buckets: 2 MiB, which a core's cache holds."""


Phases = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class ByRank:
    """Phases of R ranks: the estimate first, then resampled values (S in all)."""

    values: Mapping[str, Floats]
    """By phase, rounds x R, ns; NaN where a round lacks it."""
    weights: Floats
    """S x rounds (statistics.resampling.resampling_weights)."""

    @classmethod
    def of(cls, values: Mapping[str, Floats], weights: Floats) -> ByRank:
        """The phases, checked; UnknownQuantityError where a rank has a phase in no round."""
        for phase, of_ranks in values.items():
            if not np.isfinite(of_ranks).any(axis=0).all():
                raise UnknownQuantityError(phase)
        return cls(values, weights)

    def means(self, stretch: slice = slice(None)) -> Phases:
        """By phase, S' x R: a stretch of the S."""
        weights = self.weights[stretch]
        return {phase: _weighted_means(weights, values) for phase, values in self.values.items()}

    def mean(self) -> dict[str, Floats]:
        """By phase, S: the mean over the ranks."""
        width = next(iter(self.values.values())).shape[1]
        parts: dict[str, list[Floats]] = {phase: [] for phase in self.values}
        for stretch in stretches(len(self.weights), width):
            for phase, values in self.means(stretch).items():
                parts[phase].append(values.mean(axis=1))
        return {phase: np.concatenate(means) for phase, means in parts.items()}

    def present(self) -> list[NDArray[np.bool_]]:
        """Which rounds have a rank's phase; what is the same for several ranks is named once."""
        unique = [np.unique(np.isfinite(values), axis=1).T for values in self.values.values()]
        return [mask for masks in unique for mask in masks]


def stretches(count: int, width: int) -> Iterator[slice]:
    """Stretches of `count` rows of `width` numbers, of about SLICE_VALUES numbers each."""
    step = max(1, SLICE_VALUES // max(width, 1))
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def _weighted_means(weights: Floats, values: Floats) -> Floats:
    """S' x R: means of the rounds in which a rank has a value (rounds x R)."""
    finite = np.isfinite(values)
    if finite.all():
        whole: Floats = weights @ values / weights.sum(axis=1, keepdims=True)
        return whole
    with np.errstate(invalid="ignore", divide="ignore"):
        some: Floats = weights @ np.where(finite, values, 0.0) / (weights @ finite)
    return some


FIRST_BUCKET_BYTES = 2**20
"""Limit of the first bucket where DDP is not given one (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""
PIECES = 16
"""Where single parameters are not known, a bucket counts as this many equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Gradients of P parameters in any order, or those of K buckets in the order of reduction."""

    sizes: tuple[int, ...]
    """Bytes."""
    ready: Floats
    """S x P or S x K: the part of backward at which each is ready."""
    exact: bool = True
    """False if pieces of the measured buckets stand for parameters."""

    def part(self, stretch: slice) -> Gradients:
        """A stretch of the S."""
        return replace(self, ready=self.ready[stretch])


def assign(sizes: Sequence[int], bucket_cap_mb: float) -> list[list[int]]:
    """Indices of each bucket's parameters; `sizes` are bytes in the order in which gradients are ready."""
    cap = bucket_cap_mb * 2**20
    limit = FIRST_BUCKET_BYTES if bucket_cap_mb == DEFAULT_BUCKET_MB else cap
    buckets: list[list[int]] = [[]]
    filled = 0
    for index, size in enumerate(sizes):
        buckets[-1].append(index)
        filled += size
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, cap
    return [members for members in buckets if members]


def bucketed(gradients: Gradients, bucket_cap_mb: float) -> Gradients:
    """The buckets that DDP makes at this cap, MiB."""
    order = np.argsort(gradients.ready[0], kind="stable")
    sizes = [gradients.sizes[i] for i in order]
    members = assign(sizes, bucket_cap_mb)
    ready = np.stack([gradients.ready[:, order[m]].max(axis=1) for m in members], axis=-1)
    return Gradients(sizes=tuple(sum(sizes[i] for i in m) for m in members), ready=ready)


def pieces(buckets: Gradients) -> Gradients:
    """Gradients spread evenly between one bucket's end and the next, where only buckets are known."""
    sizes: list[int] = []
    ready: list[Floats] = []
    before = np.zeros_like(buckets.ready[:, 0])
    for k, size in enumerate(buckets.sizes):
        whole, rest = divmod(size, PIECES)
        at = buckets.ready[:, k]
        for piece in range(PIECES):
            sizes.append(whole + (rest if piece == PIECES - 1 else 0))
            ready.append(before + (at - before) * (piece + 1) / PIECES)
        before = at
    return Gradients(sizes=tuple(sizes), ready=np.stack(ready, axis=-1), exact=False)


LATENCY = 1.3
"""A measured latency holds for another link or world size within this factor (95 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """A measured world size whose link is known."""

    world_size: int
    link: Hops
    """One level of links, which joins the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Linked):
    """One measured world size."""

    batch: int
    """Samples per rank and optimizer step."""
    accumulation: int
    reductions: int
    """Micro-steps that all-reduce per optimizer step: 1 with no_sync, all of them without."""
    kernels: bool
    """Communication uses the device's compute units (NCCL), so it slows compute down while both run."""
    units: int
    """Independent units behind the numbers: rounds, or launches where there are enough of them."""
    groups: int
    """Groups of units that were resampled separately (scaling.analysis.statistics.resampling.drawn)."""
    plain: Floats  # S
    whole: Phases  # S: a rank alone with the batch of all ranks (strong scaling), or with its own
    shared: bool
    """Strong scaling: the batch of `whole` is that of all ranks."""
    alone: Phases  # S: bare_one, mean over ranks that are not late
    beside: Phases  # S: bare_all, mean over ranks that are not late
    solo: ByRank  # ddp_solo
    probe: ByRank  # the probe's phases
    buckets: Gradients
    """As measured, in bytes of gradients."""
    gradients: Gradients
    """For other bucket sizes."""
    curve: Points
    """The size sweep, ns, scaled so that the model's own buckets, one after the other, take their measured time."""
    wire: float = 1.0
    """Bytes sent over bytes of gradients, below 1 under a compressing hook; Change.compression is its inverse."""
    late: tuple[int, ...]
    jitter: Floats
    """S: standard deviation over steps of a rank's own time less the ranks' mean, mean over ranks."""
    fixed_share: float | None
    """Share of forward and backward that does not shrink with the micro-batch; None: only one batch was measured."""
    fixed_doubt: float | None = None
    """Half of its 95 % interval; None: there is no interval."""

    @property
    def peers(self) -> list[int]:
        """Ranks that are not late."""
        late = set(self.late)
        return [r for r in range(self.world_size) if r not in late]

    @property
    def whole_share(self) -> float:
        """Forward and backward of a rank's own batch over those of the whole batch, alone; 1 if these are the same."""
        part, whole = (float(arm["forward"][0] + arm["compute"][0]) for arm in (self.alone, self.whole))
        return part / whole

    def part(self, stretch: slice) -> Source:
        """A stretch of the S."""

        def sliced(phases: Phases) -> Phases:
            return {name: values[stretch] for name, values in phases.items()}

        def ranks(phases: ByRank) -> ByRank:
            return replace(phases, weights=phases.weights[stretch])

        return replace(
            self,
            plain=self.plain[stretch],
            whole=sliced(self.whole),
            alone=sliced(self.alone),
            beside=sliced(self.beside),
            solo=ranks(self.solo),
            probe=ranks(self.probe),
            buckets=self.buckets.part(stretch),
            gradients=self.gradients.part(stretch),
            link=self.link.part(stretch),
            curve=replace(self.curve, times=self.curve.times[stretch]),
            jitter=self.jitter[stretch],
        )

    def estimate(self) -> Source:
        """The source without its resampled values."""
        return self.part(slice(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changes; None: as measured."""

    world_size: int | None = None
    fabric: tuple[Hops, ...] | None = None
    """Levels from the innermost out; None: the measured link, whatever the world size."""
    fabric_doubt: float = 0.0
    """Relative uncertainty of the fabric's bandwidth (95 %)."""
    latency_factor: float = LATENCY
    """The latency is known to this factor (95 %)."""
    batch: int | None = None
    """Samples per rank and optimizer step, at the changed world size."""
    whole_batch: float = 1.0
    """Strong scaling: the batch of all ranks over the measured one."""
    accumulation: int | None = None
    reductions: int | None = None
    """1: with no_sync."""
    bucket_cap_mb: float | None = None
    compression: float = 1.0
    """Bytes sent before over bytes sent after the change."""
    compute_scale: float = 1.0
    """Speed of the target's compute relative to the source's."""
    without_straggler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """Assumptions of a prediction, or one variation of them; the defaults are those that it is made with.

    `compute`, `transfer` and `alpha` are factors on time (`transfer` on beta's part), `jitter` one on its size.
    """

    compute: float = 1.0
    transfer: float = 1.0
    alpha: float = 1.0
    jitter: float = 1.0
    fixed_off: float = 0.0
    """Added to the source's fixed share (which counts as 0 where it is not known)."""
    overlap_rule_swapped: bool = False
    """Reverse the slowdown of compute: it then follows the overlap with Gloo and stays constant with NCCL."""
    residual_follows: bool = True
    """The simulation's error on the measured step scales with the step; else it stays the same time."""


NO_CHANGE, UNVARIED = Change(), Lean()
