"""Equal steps in every precision on every rank: which ranks differ, at which layer, and how fast each format is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis.doctor import differences
from scaling.analysis.results import Measured
from scaling.analysis.results.doctor import ERROR, WARNING, Difference, Divergence, Problem
from scaling.analysis.statistics.rounds import median
from scaling.errors import InputError
from scaling.records.checkup import Layer, PrecisionRecord, RankCheck
from scaling.records.files import read_json

Records = Mapping[int, Sequence[PrecisionRecord]]
"""By rank, a record of each precision."""
Group = tuple[list[int], PrecisionRecord]
"""Ranks with the same bits, and the record of the first."""


def parts_at(record: PrecisionRecord, other: PrecisionRecord) -> str:
    """The first layer that differs, and by how much; empty if all are equal."""
    for kind, mine, theirs in (
        ("", record.layers, other.layers),
        ("gradient of ", tuple(reversed(record.gradients)), tuple(reversed(other.gradients))),
    ):
        for a, b in zip(mine, theirs, strict=False):
            if a.name != b.name or a.digest != b.digest:
                return f"{kind}{a.name} ({_text(a, b)})"
    if [s.digest for s in record.steps] == [s.digest for s in other.steps]:
        return ""
    digests = enumerate(zip(record.steps, other.steps, strict=False), 1)
    common = min(len(record.steps), len(other.steps))
    return f"step {next((i for i, (a, b) in digests if a.digest != b.digest), common + 1)}"


def _text(a: Layer, b: Layer) -> str:
    distance = apart(a, b)
    return f"{distance:.1e} apart" if math.isfinite(distance) else "not comparable"


def furthest(record: PrecisionRecord, other: PrecisionRecord) -> float:
    """The largest distance between two layers."""
    both = zip(record.layers, other.layers, strict=False)
    return max((apart(a, b) for a, b in both if a.digest != b.digest), default=0.0)


def apart(a: Layer, b: Layer) -> float:
    """|a - b| / |b| over the kept elements; infinite if only one is finite, or if the shapes differ."""
    if len(a.samples) != len(b.samples):
        return math.inf
    pairs = list(zip(a.samples, b.samples, strict=True))
    if any((x is None) != (y is None) for x, y in pairs):
        return math.inf
    finite = [(x, y) for x, y in pairs if x is not None and y is not None]
    norm = math.sqrt(sum(y * y for _, y in finite))
    distance = math.sqrt(sum((x - y) ** 2 for x, y in finite))
    return distance / norm if norm else distance


FILE_SCHEMA = 1

EPSILON = {"fp64": 2**-52, "fp32": 2**-23, "tf32": 2**-10, "bf16": 2**-7, "fp16": 2**-10}
"""Distance from 1 to the next larger number in each format."""
ALLOWED = 64
"""An error of more epsilons against float64 is not rounding; healthy deep models stay below 20."""
_REFERENCE, _SPEED = "fp64", "fp32"
_IN_FP32 = "run that layer in fp32 (torch.autocast(..., enabled=False) around it)"
_OVERFLOW = {"fp16": f"use bf16, or {_IN_FP32}", "bf16": _IN_FP32}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFile:
    """A parity file: what one machine's ranks agreed on, for comparison with another machine."""

    schema: int
    model: str
    """What has to be equal for two files to be comparable: see `identity`."""
    hostname: str
    device: str
    facts: dict[str, Any]
    parity: tuple[PrecisionRecord, ...] = ()


def read_file(path: Path, model: str) -> ParityFile:
    """A parity file of the same model and steps; InputError otherwise."""
    file = read_json(path, ParityFile, FILE_SCHEMA)
    if file.model != model:
        raise InputError(
            f"--parity {path}: was written for {file.model}, this is {model}; "
            "give the same model, batch and seed, or another file"
        )
    return file


def table(records: Records, device_of: Mapping[int, str], other: ParityFile | None) -> Iterator[Divergence]:
    """By precision and by ranks with the same bits; the machine of a parity file last."""
    for precision in _precisions(records):
        groups = groups_of(records, precision)
        first = groups[0][1]
        for ranks, record in groups:
            speed = _record(records[ranks[0]], _SPEED)
            yield _row(record, device_of[ranks[0]], ranks, None if record is first else first, speed)
        theirs = _record(other.parity, precision) if other else None
        if other and theirs:
            where = f"{other.hostname}: {other.device}"
            yield _row(theirs, where, (), first, _record(other.parity, _SPEED))


def groups_of(records: Records, precision: str) -> list[Group]:
    """Ranks by equal bits in one precision, the largest group first."""
    groups: dict[tuple[str, ...], Group] = {}
    for rank, its in sorted(records.items()):
        record = _record(its, precision)
        if record is not None:
            bits = (*(la.digest for la in record.layers), *(s.digest for s in record.steps))
            groups.setdefault(bits, ([], record))[0].append(rank)
    return sorted(groups.values(), key=lambda group: (-len(group[0]), group[0]))


def problems(
    records: Records,
    device_of: Mapping[int, str],
    distinct: Sequence[Difference],
    other: ParityFile | None,
    facts: Mapping[int, Mapping[str, Any]],
) -> Iterator[Problem]:
    """Ranks that differ from their peers, layers that are wrong everywhere, steps that do not repeat, overflow."""
    for precision in _precisions(records):
        groups = groups_of(records, precision)
        peers, usual = groups[0]
        for ranks, record in groups[1:]:
            yield _parted(precision, record, usual, ranks, peers, distinct, device_of)
        yield from _against_reference(precision, groups)
        yield from _repeats(precision, records)
        theirs = _record(other.parity, precision) if other else None
        if other and theirs:
            yield from _other_machine(precision, usual, theirs, other, facts[peers[0]])


def left_out(checks: Iterable[RankCheck]) -> Iterator[Problem]:
    """Formats in which some rank had too little memory for the steps; they are not in the table."""
    for check in checks:
        for precision in check.parity_left_out:
            missing = ", nor any format against it" if precision == _REFERENCE else ""
            yield Problem(
                what=f"{precision}: parity was not checked{missing}: its steps ran out of memory",
                rank=check.rank,
                remedy="batch_per_rank below 8 (a parity step has no more), a smaller model, or an emptier device "
                "(check-<r>.json has what was said)",
                severity=WARNING,
            )


def _parted(
    precision: str,
    record: PrecisionRecord,
    usual: PrecisionRecord,
    ranks: Sequence[int],
    peers: Sequence[int],
    distinct: Sequence[Difference],
    device_of: Mapping[int, str],
) -> Problem:
    """Ranks with equal devices and repeatable steps must agree bit for bit."""
    differ = differences.of_ranks(distinct, ranks)[:4]
    why = "; ".join(differ) or "nothing in its environment differs: suspect the device"
    rounding = device_of[ranks[0]] != device_of[peers[0]] or usual.repeat_parted or record.repeat_parted
    verb = "differs" if len(ranks) == 1 else "differ"
    small = furthest(record, usual) <= ALLOWED * EPSILON[precision]
    return Problem(
        what=f"{precision}: {differences.ranks_text(ranks)} {verb} from {differences.ranks_text(peers)} "
        f"at {parts_at(record, usual)}; {why}",
        rank=ranks[0] if len(ranks) == 1 else None,
        remedy="make the differing settings equal; if none differ, swap the device with a healthy one and see whether "
        "the difference moves with it",
        severity=WARNING if rounding and small else ERROR,
    )


def _against_reference(precision: str, groups: Sequence[Group]) -> Iterator[Problem]:
    for ranks, record in groups:
        rank = ranks[0] if len(groups) > 1 and len(ranks) == 1 else None
        broken = _not_finite(record)
        bad = next((la for la in record.layers if la.error and la.error > ALLOWED * EPSILON[precision]), None)
        if broken:
            yield Problem(
                what=f"{precision}: overflow, {broken}",
                rank=rank,
                remedy=_OVERFLOW.get(precision, "torch.autograd.detect_anomaly() names the operator"),
                severity=ERROR,
            )
        elif bad is not None and precision != _REFERENCE:
            yield Problem(
                what=f"{precision}: {bad.name} is {bad.error:.1%} off float64, "
                f"{bad.error / EPSILON[precision]:.0f} times the format's own rounding",  # type: ignore[operator]
                rank=rank,
                remedy=f"run {bad.name} in fp32 (torch.autocast(..., enabled=False) around it), and look for what it "
                "does only in that precision",
                severity=WARNING,
            )


def _not_finite(record: PrecisionRecord) -> str:
    """The first output, or gradient as backward goes, with elements that are not finite; `` where all are."""
    for kind, tensors in (("", record.layers), ("gradient of ", tuple(reversed(record.gradients)))):
        for tensor in tensors:
            if tensor.not_finite:
                return f"{tensor.not_finite} elements are not finite, first in {kind}{tensor.name}"
    return "" if record.scale else "a gradient is not finite at any loss scale"


def _repeats(precision: str, records: Records) -> Iterator[Problem]:
    parted: dict[str, list[int]] = {}
    for rank, its in sorted(records.items()):
        record = _record(its, precision)
        if record and record.repeat_parted:
            parted.setdefault(record.repeat_parted, []).append(rank)
    for place, ranks in parted.items():
        yield Problem(
            what=f"{precision}: not repeatable on {differences.ranks_text(ranks)}: a second run differs at {place}",
            rank=ranks[0] if len(ranks) == 1 else None,
            remedy="torch.use_deterministic_algorithms(True), torch.backends.cudnn.benchmark = False and "
            "CUBLAS_WORKSPACE_CONFIG=:4096:8 name the operator; seed what draws random numbers",
            severity=WARNING,
        )


def _other_machine(
    precision: str,
    ours: PrecisionRecord,
    theirs: PrecisionRecord,
    other: ParityFile,
    facts: Mapping[str, Any],
) -> Iterator[Problem]:
    """Two machines may round differently; more than that is a finding."""
    apart = furthest(ours, theirs)
    if apart <= ALLOWED * EPSILON[precision]:
        return
    differ = differences.differences({0: other.facts, 1: dict(facts)})
    why = "; ".join(differences.of_ranks(differ, [1])[:4]) or "nothing in the environment differs"
    yield Problem(
        what=f"{precision}: differs from {other.hostname} ({other.device}) at {parts_at(ours, theirs)}; {why}",
        rank=None,
        remedy="make the differing settings equal, then compare again",
        severity=ERROR,
    )


def _row(
    record: PrecisionRecord,
    device: str,
    ranks: Sequence[int],
    first: PrecisionRecord | None,
    speed: PrecisionRecord | None,
) -> Divergence:
    last = record.steps[-1]
    step = median(record.step_ns)
    base = median(speed.step_ns) if speed else None
    return Divergence(
        precision=record.precision,
        device=device,
        ranks=tuple(ranks),
        loss_error=last.loss_error,
        gradient_error=record.steps[0].gradient_error,
        weight_error=last.weight_error,
        worst_layer=record.steps[0].worst_layer,
        repeatable=not record.repeat_parted,
        scale=record.scale,
        not_finite=sum(la.not_finite for la in record.layers),
        flushed=sum(la.flushed for la in record.layers),
        step_ms=step,
        speedup=Measured(base.value / step.value, n=step.n) if base and step else None,
        peak_bytes=record.peak_bytes,
        parts_at="" if first is None else parts_at(record, first),
    )


def _precisions(records: Records) -> list[str]:
    return list(dict.fromkeys(r.precision for its in records.values() for r in its))


def _record(records: Sequence[PrecisionRecord], precision: str) -> PrecisionRecord | None:
    return next((r for r in records if r.precision == precision), None)
