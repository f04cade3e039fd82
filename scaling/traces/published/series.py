"""Runs of one benchmark on machines of one kind: their throughput, in one unit, and which of them scale how.

Samples/s of a run are the samples of its whole epochs (or blocks) over their time. The throughput that a log states is
not used, but compared: some submitters log that of one device, and an epoch's size is given in samples by some and
in steps by others. Where both are unknown, the pair that makes the stated throughput right within AGREE is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scaling.spec.plan import RANKS_MAX
from scaling.traces.published.mllog import RunLog
from scaling.traces.published.systems import System

AGREE = 0.05
"""Relative difference between a throughput that is stated and that of the epochs: the same, in some unit."""
DATASETS = {"retinanet": 1_170_301, "resnet": 1_281_167, "ssd": 117_266, "maskrcnn": 117_266, "unet3d": 168}
"""Training samples (MLPerf Training rules; OpenImages-MLPerf, ImageNet, COCO 2017, KiTS19)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One log's figures."""

    path: Path
    samples_per_s: float
    """Of all devices."""
    unit: str
    """Of the throughput that the log states: `job`, `device`, `unknown`, or empty where it states none."""
    stretches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """All runs of one system at one number of devices and one batch."""

    world_size: int
    nodes: int
    global_batch: int
    runs: tuple[MeasuredRun, ...]

    @property
    def samples_per_s(self) -> float:
        """Mean over runs."""
        return sum(r.samples_per_s for r in self.runs) / len(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Sizes that can be compared: at one global batch (strong), or one batch a device (weak)."""

    benchmark: str
    system: System
    mode: str
    sizes: tuple[Size, ...]


def gather(found: Sequence[tuple[RunLog, System]]) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """All series of the logs, and what is to be said of them."""
    said: list[str] = []
    sizes: dict[tuple[str, ...], dict[tuple[int, int], list[MeasuredRun]]] = defaultdict(
        lambda: defaultdict(list)
    )
    systems: dict[tuple[str, ...], System] = {}
    nodes: dict[tuple[tuple[str, ...], int], int] = {}
    for log, system in found:
        placed = _placed(log, system)
        if isinstance(placed, str):
            said.append(f"{log.path}: left out: {placed}")
            continue
        devices, batch, run, notes = placed
        said += [f"{log.path}: {note}" for note in notes]
        key: tuple[str, ...] = (
            log.text("submission_benchmark"),
            system.submitter or log.text("submission_org"),
            system.name or log.text("submission_platform"),
            system.device,
            system.interconnect,
            system.framework,
        )
        sizes[key][devices, batch].append(run)
        systems.setdefault(key, system)
        nodes[key, devices] = system.nodes or 1
    made = []
    for key, by_size in sizes.items():
        whole = [
            Size(world_size=n, nodes=nodes[key, n], global_batch=batch, runs=tuple(runs))
            for (n, batch), runs in sorted(by_size.items())
        ]
        for mode, chosen in _comparable(whole):
            made.append(Series(benchmark=key[0], system=systems[key], mode=mode, sizes=tuple(chosen)))
    return tuple(made), tuple(said)


def _placed(log: RunLog, system: System) -> tuple[int, int, MeasuredRun, list[str]] | str:
    """(devices, global batch, run, notes); or why the log gives no figure."""
    batch, local = log.number("global_batch_size"), log.number("local_batch_size")
    micro = log.number("gradient_accumulation_steps") or 1
    notes = [f"{log.odd} lines of MLPerf's log cannot be read or go back in time"] if log.odd else []
    if batch is None:
        return "it does not give its global_batch_size"
    copies = None if local is None or batch % (local * micro) else batch // (local * micro)
    devices = system.devices or copies
    if devices is None or devices > RANKS_MAX:
        return "neither a description of its system nor its batch tells how many devices it ran on"
    if copies is not None and copies != devices:
        shared = devices % copies == 0
        notes.append(
            f"its batch is that of {copies} copies of the model, its system has {devices} devices"
            + ("" if shared else ": the two do not fit, so the number of devices is doubtful")
        )
    if not log.stretches:
        return "it holds no whole epoch or block of training"
    if log.status != "success":
        notes.append(f"the run ended with status {log.status or 'unknown'}; its epochs are used")
    rate, unit, why = _rate(log, batch, devices)
    if why:
        notes.append(why)
    if rate is None:
        return why
    return (
        devices,
        batch,
        MeasuredRun(path=log.path, samples_per_s=rate, unit=unit, stretches=len(log.stretches)),
        notes,
    )


def _rate(log: RunLog, batch: int, devices: int) -> tuple[float | None, str, str]:
    """(samples/s of the job, the unit of the stated throughput, what is to be said)."""
    seconds = sum(s.seconds for s in log.stretches)
    stated = median(log.stated) if log.stated else None
    counted = [s.samples for s in log.stretches if s.samples is not None]
    if len(counted) == len(log.stretches):
        sizes = [sum(counted)]
    else:
        epoch = log.number("train_samples")
        if epoch is None:
            return None, "", "it does not give the samples of an epoch (train_samples)"
        many = len(log.stretches)
        sizes = [epoch * many, epoch * batch * many]
        known = DATASETS.get(log.text("submission_benchmark"))
        if known is not None:
            near = [s for s in sizes if abs(s / many - known) <= max(batch, 0.005 * known)]
            if not near:
                return (
                    None,
                    "",
                    f"its train_samples, {epoch}, are neither the dataset's samples nor its steps",
                )
            sizes = near
    each = [s.seconds / (s.samples or 1.0) for s in log.stretches]
    uneven = max(each) / min(each)
    doubt = f"; its epochs differ by {uneven - 1:.0%}" if uneven > 1 + 4 * AGREE else ""
    if stated is None:
        if len(sizes) > 1:
            return (
                None,
                "",
                "it states no throughput, and its train_samples may be samples or steps",
            )
        return sizes[0] / seconds, "", doubt.removeprefix("; ")
    fits = [
        (abs(stated * scale * seconds / size - 1), size / seconds, unit)
        for size in sizes
        for unit, scale in (("job", 1), ("device", devices))
    ]
    off, rate, unit = min(fits, key=lambda one: one[0])  # with one device both are the job's
    if off > AGREE:
        if len(sizes) > 1:
            return None, "", "its throughput fits neither unit, and its train_samples may be samples or steps"
        return (
            rate,
            "unknown",
            f"it states {stated:.5g} samples/s, its epochs give {rate:.5g}: the epochs count{doubt}",
        )
    return rate, unit, doubt.removeprefix("; ")


def _comparable(sizes: Sequence[Size]) -> Iterable[tuple[str, list[Size]]]:
    """The largest set at one global batch or one batch a device, then the largest of the rest, until none is left."""
    left = list(sizes)
    while left:
        batches, shares = ({s.global_batch for s in left}, {s.global_batch / s.world_size for s in left})
        sets = [("strong", [s for s in left if s.global_batch == batch]) for batch in batches]
        sets += [("weak", [s for s in left if s.global_batch / s.world_size == share]) for share in shares]
        mode, chosen = max(sets, key=lambda one: (len(one[1]), one[0] == "strong", -one[1][0].global_batch))
        yield mode, chosen
        left = [s for s in left if s not in chosen]
