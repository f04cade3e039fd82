"""The numbers behind a cause at one world size, as sentences with units."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.invariants import ABOVE_ONE
from scaling.analysis.results import Comm, Degrees, FabricLevel, Point
from scaling.analysis.verdicts import host_remedies
from scaling.settings.parallel import PIPELINED
from scaling.units import format_bytes, significant, two_digits

STEP = "a step"
FULL = 0.9
"""A link that carries more than this share of its nominal rate is kept busy by bytes."""
ALIKE = 0.02
"""Steps with and without phase stamps that differ by less than this share are not told apart."""


def evidence_of(
    cause: str, point: Point, level: FabricLevel | None = None, ranks_per_device: int = 1
) -> Iterator[str]:
    """Sentences on one cause of loss, none of which another cause has; empty where nothing was measured about it.

    `level`: the size sweep over the same ranks. `ranks_per_device`: where a device has most of them.
    """
    comm, parts, arms = point.comm, point.parts_ms, point.arms_ms
    pipelined = point.parallel is not None and point.parallel.strategy == PIPELINED
    if cause == "link_latency":
        yield from _latency_lines(point, level)
    if cause == "link_bandwidth" and comm is not None:
        if comm.gradient_bytes and (comm.reductions or 1) > 1:
            yield (
                f"gradients of {format_bytes(comm.gradient_bytes)} are reduced {comm.reductions} times a step: "
                "no_sync is missing"
            )
        if parts.exposed_transfer is not None and point.step_ms is not None:
            which, step_ms = step_of_parts(point)
            yield f"{which} waits {parts.exposed_transfer.value:.1f} of {step_ms:.1f} ms for data on the link"
        yield from _rate_lines(comm)
        if with_latency(point):
            yield (
                f"the step sends {len(comm.buckets)} buckets, and what of the wait is latency is not known: no sizes "
                "were swept"
            )
    if cause == "communication" and parts.exposed_transfer and arms.probe:
        yield (
            f"every rank waits {parts.exposed_transfer.value:.1f} ms for communication, of the "
            f"{arms.probe.value:.1f} ms of a step with phase stamps"
        )
        few = comm is not None and comm.busbw_gbit_s is not None and comm.busbw_gbit_s.interval is None
        if comm and few:
            yield from _rate_lines(comm)  # too few rounds had details for more than this
        if pipelined:
            yield "in a pipeline that is the bubble, too, in which stages wait for the others' microbatches"
    if cause == "straggler" and point.straggler is not None:
        late = point.straggler
        which, step_ms = step_of_parts(point)
        within = f" of the {step_ms:.1f} ms of {which}" if which != STEP else ""
        where = "" if late.phase == "step" else f", mostly in {late.phase}"
        yield (
            f"rank {late.rank} is late{where}: the others wait {late.skew_ms.value:.1f} ms a step "
            f"longer than it does, and it costs {late.cost_ms.value:.1f} ms{within}"
        )
        if pipelined:
            yield "a stage that has more to do than the others is late, too: then divide the layers otherwise"
        if late.by_itself is not None:
            alone = "alone it is as fast as the others"
            yield "it is slow when it runs alone, too" if late.by_itself else alone
        if late.host is not None:
            yield f"all ranks of host {late.host} are late: look at what they share"
        yield from (line for rank, line in _throttled(point) if rank == late.rank)
    if cause == "imbalance":
        yield from host_remedies.token_evidence(point)
    if cause == "neighbours" and arms.bare_all and arms.bare_one:
        shared = "a device" if ranks_per_device > 1 else "a host"
        yield (
            f"ranks that share {shared} slow each other: without DDP a step takes {arms.bare_all.value:.1f} ms while "
            f"the other ranks run, and {arms.bare_one.value:.1f} ms alone"
        )
    if cause == "strategy_overhead" and arms.ddp_solo and arms.bare_all:
        wrapper = "DDP" if point.parallel is None else point.parallel.strategy.partition("_")[0].upper()
        yield (
            f"{wrapper} over one rank takes {arms.ddp_solo.value:.1f} ms a step, "
            f"the bare module {arms.bare_all.value:.1f} ms"
        )
        degrees = point.parallel or Degrees(strategy="")
        phases = [parts.input, parts.forward, parts.backward, parts.optimizer, parts.host]
        if degrees.tensor > 1 and None not in phases:
            yield (
                f"without its waits a rank takes {sum(part.value for part in phases if part):.1f} ms a step; the "
                f"{degrees.tensor} ranks that divide the layers would take "
                f"{arms.ddp_solo.value / degrees.tensor:.1f} ms each, if all of it could be divided"
            )
        elif degrees.shard > 1 and parts.optimizer:
            yield f"less what shards save of the optimizer, which takes {parts.optimizer.value:.1f} ms now"
    if cause == "overlap":
        longer = _of_step("overlap", point)
        by = f" by {longer:.1f} ms" if longer is not None else ""
        yield f"forward and backward compute take longer{by} while gradients are being reduced"
    if cause == "small_batch" and arms.bare_one:
        yield (
            f"a rank's part of the batch takes {arms.bare_one.value:.1f} ms alone, more than its part of the whole "
            "batch's time"
        )
    if cause == "clocks":
        yield from _clock_lines(point)
        yield from (line for _, line in _throttled(point))
    if cause in ("input", "host"):
        part = getattr(parts, cause)
        if part is not None:
            yield f"a step spends {part.value:.1f} ms in {cause}"


def with_latency(point: Point) -> bool:
    """Whether `link_bandwidth` may hold latency: several buckets, no sweep of sizes, and a link that is not full."""
    comm = point.comm
    if comm is None or point.loss is None or point.loss.link_latency is not None or len(comm.buckets) < 2:
        return False
    return comm.nominal_share is None or comm.nominal_share.value < FULL


def step_of_parts(point: Point) -> tuple[str, float]:
    """The step that the parts are of, in words, and its ms. On a busy machine one with phase stamps may differ."""
    over, stamped, step = point.overhead.probe_over_plain, point.arms_ms.probe, point.step_ms
    if stamped and (step is None or (over and abs(over.value - 1) > ALIKE)):
        return f"{STEP} with phase stamps", stamped.value
    return STEP, step.value if step else 0.0


def _rate_lines(comm: Comm) -> Iterator[str]:
    """How much a step sends, and how fast."""
    if comm.busbw_gbit_s is None:
        return
    share = comm.nominal_share
    of_link = f", {share.value:.0%} of what the link can carry" if share else ""
    if share and share.surely_above(1):
        of_link += f": {ABOVE_ONE['nominal_share']}"
    yield f"{format_bytes(comm.bytes_per_step)} a step at {significant(comm.busbw_gbit_s.value)} Gbit/s{of_link}"


def _latency_lines(point: Point, level: FabricLevel | None) -> Iterator[str]:
    """How many messages a step sends, and what each costs before its bytes move."""
    comm, lost_ms = point.comm, _of_step("link_latency", point)
    if comm is not None and comm.buckets:
        sent = len(comm.buckets)
        messages = "1 message" if sent == 1 else f"{sent} messages"
        cost = f", whose fixed costs are {lost_ms:.1f} ms of it" if lost_ms is not None else ""
        yield f"a step sends {messages} of {comm.bytes_per_step / sent / 2**10:.0f} KiB on average{cost}"
    if level is not None and level.alpha_us is not None:
        hops = 2 * (level.world_size - 1)
        yield (
            f"a message takes {two_digits(hops * level.alpha_us.value)} us however small it is: "
            f"{hops} hops of {two_digits(level.alpha_us.value)} us each in the size sweep"
        )


def _of_step(cause: str, point: Point) -> float | None:
    """A cause's share of the step in ms."""
    share = getattr(point.loss, cause) if point.loss else None
    return share.value * point.step_ms.value if share is not None and point.step_ms is not None else None


def _clock_lines(point: Point) -> Iterator[str]:
    seen = point.clocks
    if seen is None:
        return
    named = {"alone": seen.alone_mhz, "beside the others": seen.beside_mhz, "with DDP": seen.together_mhz}
    clocks = [f"{number.value:.0f} MHz {when}" for when, number in named.items() if number is not None]
    if clocks:
        yield f"the SM clock is {', '.join(clocks)}"


def _throttled(point: Point) -> Iterator[tuple[int, str]]:
    """(rank, sentence) of every device that slowed itself down."""
    for slow in point.clocks.throttled if point.clocks else ():
        blocks = f"{slow.blocks} of {slow.of} blocks ({', '.join(slow.reasons)})"
        yield slow.rank, f"rank {slow.rank}'s device slowed itself down in {blocks}"
