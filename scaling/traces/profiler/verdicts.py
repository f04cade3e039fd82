"""Name what takes the step's time, by rules over its parts. Traces hold no baseline, so there is no efficiency."""

from __future__ import annotations

from scaling.analysis.results import Point, Remedy, Verdict
from scaling.analysis.results.measured import Measured, mean_of
from scaling.analysis.results.traces import Traced
from scaling.analysis.verdicts.certainty import NOTABLE
from scaling.analysis.verdicts.verdict import named, undecided
from scaling.traces.profiler.jobs import UNSEEN, TracedRanks, listed

LARGE_BYTES = 1 << 18
"""Bandwidth limits larger messages, latency smaller ones."""


def verdicts(point: Point, traced: Traced, job: TracedRanks) -> tuple[Verdict, ...]:
    """Causes by share of the step, largest first; `undecided` where none stands out or ranks are missing."""
    step = point.step_ms
    if step is None or step.value <= 0:
        return ()
    if traced.missing_ranks:
        missing = len(traced.missing_ranks)
        return (undecided(point, f"{missing} of {point.world_size} ranks have no readable trace"),)
    if job.unseen:
        return (undecided(point, f"rank {listed(job.unseen)}: {UNSEEN}"),)
    no_workers = any(file.no_workers for file in job.ranks.values())
    found = [
        named(cause, point, share, evidence, remedies)
        for cause, share, evidence, remedies in _causes(point, traced, step, no_workers=no_workers)
        if share.value > NOTABLE and share.least > 0
    ]
    if found:
        return tuple(sorted(found, key=lambda v: -(v.share.value if v.share else 0)))
    why = "no part of the step but compute takes more than 3 % of it"
    return (undecided(point, why, confidence="medium"),)


def _causes(
    point: Point, traced: Traced, step: Measured, *, no_workers: bool
) -> list[tuple[str, Measured, tuple[str, ...], tuple[Remedy, ...]]]:
    found = []

    def add(cause: str, ms: Measured | None, evidence: tuple[str, ...], *remedies: Remedy) -> None:
        if ms is not None:
            found.append((cause, ms * (1 / step.value), evidence, remedies))

    parts = point.parts_ms
    if point.straggler is not None:
        late = point.straggler
        add(
            "straggler",
            late.cost_ms,
            (
                f"the others wait {late.cost_ms.value:.3g} of {step.value:.3g} ms for rank {late.rank}, exposed; "
                f"it takes longest over {late.phase}",
            ),
        )
    sized = [c for c in traced.collectives if c.bytes]
    small = sum(c.transfer_us.value * c.count for c in sized if (c.bytes or 0) < LARGE_BYTES)
    whole = sum(c.transfer_us.value * c.count for c in sized)
    if parts.exposed_transfer is not None:
        share = small / whole if whole else 0.0
        waits = f"{parts.exposed_transfer.value:.3g} of {step.value:.3g} ms wait for data on the link"
        below = f"{share:.0%} of the transfer is in messages below 256 KiB"
        add(
            "link_latency",
            parts.exposed_transfer * share,
            (waits, below),
            Remedy(
                overrides="ddp.bucket_cap_mb=100", code="DistributedDataParallel(model, bucket_cap_mb=100)"
            ),
        )
        add(
            "link_bandwidth",
            parts.exposed_transfer * (1 - share),
            (waits, below),
            Remedy(
                overrides="accumulation_steps=2",
                code="reduce gradients every other batch: `with ddp.no_sync():` around the others",
            ),
        )
    elif point.world_size > 1 and traced.ranks:
        exposed = mean_of([r.exposed_ms for r in traced.ranks])
        waits = f"{exposed.value:.3g} of {step.value:.3g} ms wait for communication"
        add("communication", exposed, (f"{waits}; whether for a late rank or for data is unknown",))
    if traced.dilation is not None:
        dilation = traced.dilation
        add(
            "overlap",
            dilation.cost_ms,
            (
                f"{dilation.kernels} kernels take {dilation.ratio.value:.3g} times as long beside communication",
            ),
        )
    if parts.host is not None:
        gaps = [
            sum(getattr(r, f"{k}_ms").value for r in traced.ranks) / len(traced.ranks)
            for k in ("host", "launch", "idle", "copies")
        ]
        add(
            "host",
            parts.host,
            (
                f"{parts.host.value:.3g} of {step.value:.3g} ms pass without compute or communication: "
                f"{gaps[0]:.3g} not yet launched, {gaps[1]:.3g} launched and not started, "
                f"{gaps[2]:.3g} without a known launch, {gaps[3]:.3g} copies",
            ),
            Remedy(overrides="compile=true", code="model = torch.compile(model)"),
        )
    if parts.input is not None:
        waits = f"{parts.input.value:.3g} ms a step wait for the data loader"
        if no_workers:
            add(
                "input",
                parts.input,
                (f"{waits}, which has no workers: it reads in the training's own process",),
                Remedy(
                    overrides="model.workers=4",
                    code="DataLoader(..., num_workers=4, persistent_workers=True)",
                ),
            )
        else:
            add("input", parts.input, (waits,))
    return found
