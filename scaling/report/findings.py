"""The findings of a run, its measured links and the paths that NCCL chose, as sentences."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from scaling.analysis import results
from scaling.plain import plain
from scaling.report import text
from scaling.report.text import change, count, number, percent, quantity, ranks
from scaling.units import UNKNOWN, format_bytes, format_duration

IN_WORDS = {
    "neighbours": "ranks beside each other slow each other",
    "straggler": "a late rank holds up the others",
    "imbalance": "ranks with more tokens hold up the others",
    "overlap": "compute slowed while gradients are reduced",
    "small_batch": "a rank's part of the batch is too small",
    "launch_bound": "the device waits for the host to launch its kernels",
    "tensor_across_hosts": "layers are divided over ranks of several hosts",
    "slow_path": "data take a slower path than the topology promises",
}
"""Causes whose names say too little to stand alone."""
EQUAL = 1.0005
"""Tokens of the fullest rank over the mean rank's that read as the same number."""


def straggler_line(straggler: results.Straggler) -> str:
    """Which rank is late in which phase, what that costs, and whether the rank is slow alone too."""
    alone = {
        True: "it is slow by itself too",
        False: "alone it is as fast as the others",
        None: "whether it is slow alone is not known",
    }[straggler.by_itself]
    phase = _phase(straggler.phase)
    cost, skew = quantity(straggler.cost_ms, "ms"), quantity(straggler.skew_ms, "ms")
    who = f"rank {straggler.rank} is late in {phase} and costs"
    if straggler.host is not None:
        who = f"all ranks of host {straggler.host} are late in {phase}, rank {straggler.rank} most, and cost"
    return f"{who} {cost} a step (skew {skew}); {alone}"


def phase_line(phase: results.NamedPhase) -> str:
    """How long a phase that the loop names takes, how much of that is waiting, and who is late in it."""
    took, waits = quantity(phase.ms, "ms"), quantity(phase.waits_ms, "ms")
    line = f"{plain(phase.name)} takes {took} of a step, {waits} of it waiting for communication"
    if phase.late_rank is None:
        return line
    return f"{line}; rank {phase.late_rank} is late in it and costs {quantity(phase.late_ms, 'ms')}"


def beside_lines(point: results.Point, least: float = 0.0) -> Iterator[str]:
    """Long steps that come back, then pauses of other kinds: those with `least` of the wall time or more."""
    for stall in point.stalls:
        if stall.wall_share >= least:
            often = (
                f"every {stall.every_steps}th step" if stall.every_steps else count(stall.longer_ms.n, "step")
            )
            kind = "" if stall.kind == UNKNOWN else f" ({plain(stall.kind)})"
            longer, cost = quantity(stall.longer_ms, "ms"), quantity(stall.cost_ms, "ms")
            share = f"{stall.wall_share:.1%} of the time"
            yield f"{often} takes {longer} longer{kind}, {plain(stall.where)}: {cost} a step, {share}"
    in_stalls = {stall.kind for stall in point.stalls}
    for pause in point.pauses:
        if pause.kind not in in_stalls and pause.wall_share >= least:
            times = "once" if pause.count == 1 else f"{pause.count} times"
            line = f"{plain(pause.kind)} {times}, {format_duration(pause.seconds.value)} in all, {plain(pause.where)}"
            if pause.steps_beside is not None:
                floor = change(point.overhead.aa_floor)
                line += (
                    f"; steps beside it take {percent(pause.steps_beside)} of the others (A/A floor {floor})"
                )
            yield f"{line}, {pause.wall_share:.1%} of the time" if pause.wall_share else line


def drift_lines(point: results.Point, least: float = 0.0) -> Iterator[str]:
    """Since when who takes longer or less, and what devices say: changes of `least` of the step or more."""
    for drift in point.drifts:
        if point.step_ms is None or abs(drift.step_more_ms.value) < least * point.step_ms.value:
            continue
        longer = drift.more_ms.value > 0
        who = f"rank{'s' if len(drift.ranks) > 1 else ''} {text.ranges(drift.ranks)}"
        who = "all ranks" if 1 < len(drift.ranks) == point.world_size else who
        who = f"{who} in {_phase(drift.phase)}" if drift.ranks else DRIFTS[drift.phase]
        since = f"after {format_duration(drift.since_s)}" + f" of launch {drift.launch}" * (drift.launch > 0)
        if drift.since_unix_s is not None:
            at = dt.datetime.fromtimestamp(drift.since_unix_s, dt.timezone.utc)
            since = f"{at:%Y-%m-%d %H:%M} UTC, {since}"
        since = since if drift.since_step is None else f"step {drift.since_step:,} ({since})"
        more = (
            f"{quantity(drift.more_ms if longer else -drift.more_ms, 'ms')} {'longer' if longer else 'less'}"
        )
        more += " against the others" * (0 < len(drift.ranks) < point.world_size)
        levels = f"{quantity(drift.before_ms, 'ms')} before, {quantity(drift.after_ms, 'ms')} since"
        line = f"{who}: {more} from {since} on ({levels})"
        if drift.phase != "step":
            line += f", the step {text.signed(quantity(drift.step_more_ms, 'ms'))}"
        names = [plain(name).replace("_", " ") for name in drift.reasons]
        before, after = drift.sm_mhz_before, drift.sm_mhz_after
        if before and after and abs(after.value / before.value - 1) > CLOCK_CHANGES:
            names.append(f"SM clock {text.value_of(before)} MHz before, {text.value_of(after)} since")
        yield f"{line}; {', '.join(names)}" if names else line


def _phase(name: str) -> str:
    return DRIFTS.get(name) or text.PARTS.get(name, plain(name))


DRIFTS = {"exposed": "waits for communication", "step": "the step"}
"""What changes where no rank's own time does."""
CLOCK_CHANGES = 0.02
"""Clocks that differ by less are not named."""


def goodput_line(goodput: results.Goodput) -> str:
    """How much of the time went into steps that counted, and where the rest went, largest first."""
    seconds = {
        f"steps done twice ({goodput.steps_done_twice})": goodput.done_twice_s,
        f"start-up (of {goodput.launches})": goodput.start_up_s,
        "between launches": goodput.between_launches_s,
        "pauses": goodput.pauses_s,
        "stalls": goodput.stalls_s,
        "not explained": goodput.other_s,
    }
    parts = sorted(seconds.items(), key=lambda part: -abs(part[1]))
    notable_s = NOTABLE_S * goodput.wall_s
    rest = ", ".join(f"{name} {s / goodput.wall_s:.1%}" for name, s in parts if abs(s) > notable_s)
    waits = f"{goodput.waiting_s / goodput.wall_s:.1%} of all time waiting for the slowest rank"
    waiting = f" ({waits})" if goodput.waiting_s > notable_s else ""
    unknown = "" if goodput.steps_done_twice is not None else "; whether steps were done twice is unknown"
    took = format_duration(goodput.wall_s)
    return f"{goodput.share:.1%} of {took} in {goodput.steps:,} steps that counted{waiting}; {rest}{unknown}"


NOTABLE_S = 0.001
"""Smaller shares of a training's time are not listed."""
BETWEEN = "; efficiency, phases and late ranks are those of the steps between"


def tokens_line(tokens: results.TokenBalance, step_ms: results.Measured | None) -> str:
    """How many tokens a rank's step has, what one takes, and what it would save if all ranks had as many."""
    line = f"{quantity(tokens.per_step)} a rank and step"
    if tokens.most_over_mean.value < EQUAL:
        return f"{line}, the same on all ranks"
    line += f"; the rank that has most in its step has {percent(tokens.most_over_mean)} of the mean"
    if tokens.rank is not None:
        line += f"; rank {tokens.rank} has most over all steps, {quantity(tokens.rank_extra)} more than the mean rank"
    squares = f" and {quantity(tokens.per_square_us, 'us')} a squared one" if tokens.per_square_us else ""
    if tokens.saves_ms is not None:
        return (
            f"{line}; lateness follows tokens, {quantity(tokens.per_token_us, 'us')} each{squares}: balancing them "
            f"would save {quantity(tokens.saves_ms, 'ms')} of {quantity(step_ms, 'ms')}"
        )
    if tokens.per_token_us is not None:
        return f"{line}; a token takes {quantity(tokens.per_token_us, 'us')}, no sure time"
    return f"{line}; what a token takes cannot be told, since the numbers do not vary enough"


def overhead_line(overhead: results.Overhead) -> str:
    """The probe's own cost beside the A/A floor: how far two equal measurements differ."""
    probe, floor = change(overhead.probe_over_plain), change(overhead.aa_floor)
    return f"{probe} of the plain step; plain against plain (A/A floor) {floor}"


def closure_line(closure: results.Measured) -> str:
    """The step simulated from its pieces against the measured one."""
    return f"the step simulated from its pieces is {percent(closure)} of the measured one"


def loader_line(loader: results.DataLoading) -> str:
    """Who makes the batches, how fast, and how much of a step waits for them."""
    who = count(loader.workers, "worker") + " a rank" if loader.workers else "the training process"
    waits = f"; {percent(loader.wait_share)} of the step waits for batches" if loader.wait_share else ""
    needed = f"; {count(loader.workers_needed, 'worker')} would do" if loader.workers_needed else ""
    return f"made by {who}, a batch in {quantity(loader.make_ms, 'ms')}{waits}{needed}"


def memory_line(memory: results.PeakMemory, device: str) -> str:
    """The peak memory of a rank, and the memory of its group's communicator."""
    kind = "resident" if device == "cpu" else "allocated by torch"
    lines = [f"{format_bytes(memory.peak_bytes)} a rank at most ({kind})"] if memory.peak_bytes else []
    parts = (
        ("parameters", memory.parameters_bytes, memory.computed_parameters_bytes),
        ("gradients", memory.gradients_bytes, memory.computed_gradients_bytes),
        ("the optimizer's state", memory.optimizer_bytes, memory.computed_optimizer_bytes),
        ("gathered at once", memory.unsharded_bytes, memory.computed_unsharded_bytes),
        ("activations", memory.activations_bytes, None),
    )
    part_sizes = [
        f"{format_bytes(size)} {name}{_beside(size, computed)}" for name, size, computed in parts if size
    ]
    if memory.peak_bytes and part_sizes:
        lines.append(", ".join(part_sizes))
    if memory.harness_bytes:
        lines.append(f"without {format_bytes(memory.harness_bytes)} of the harness's own")
    if memory.communicators_bytes is not None:
        lines.append(f"{format_bytes(memory.communicators_bytes)} for the group's communicator")
    return "; ".join(lines)


def _beside(size: int, computed: int | None) -> str:
    """What arithmetic says, where that is more than 1 % off."""
    return f" (computed {format_bytes(computed)})" if computed and abs(computed / size - 1) > 0.01 else ""


def use_line(
    mfu: results.Measured | None, hfu: results.Measured | None, roofline: results.RooflineResult
) -> str:
    """How well the device's peak is used, and why by more than all of it; empty where no FLOP was counted."""
    if mfu is None or hfu is None:
        return ""
    again = f"; HFU {percent(hfu)} with what checkpointing runs again" if hfu.value > mfu.value else ""
    why = f" ({plain(roofline.above)})" if hfu.value > 1 and roofline.above else ""
    return f"MFU {percent(mfu)} of {plain(roofline.peak_is)}{again}{why}"


def cost_line(cost: results.SampleCost) -> str:
    """Money and energy, as far as they are known; empty where neither is."""
    parts = (
        (cost.usd_per_million_samples, "USD", "a million samples"),
        (cost.power_w, "W", "of all ranks' GPU boards"),
        (cost.samples_per_joule, "", "samples a joule"),
    )
    return "; ".join(f"{quantity(value, unit)} {what}" for value, unit, what in parts if value)


def comm_line(comm: results.Comm, rate_source: str, *, disturbed: bool = False) -> str:
    """What a step sends, at which bandwidth, and how that compares. `disturbed`: by stamps of single collectives."""
    calls = sum(collective.calls for collective in comm.collectives)
    pieces = count(len(comm.buckets), "bucket") if comm.buckets else count(calls, "collective")
    parts = [
        f"{format_bytes(comm.bytes_per_step)} per rank and step{f' in {pieces}' if comm.buckets or calls else ''}"
    ]
    if comm.unclaimed_bytes:
        parts.append(f"nobody was seen to wait for {format_bytes(comm.unclaimed_bytes)} of it")
    if comm.busbw_gbit_s:
        of_which = " (of steps that stamps disturb)" if disturbed else ""
        parts.append(f"busbw {quantity(comm.busbw_gbit_s, 'Gbit/s')}{of_which}")
    if comm.curve_share:
        parts.append(f"{percent(comm.curve_share)} of the machine's own curve")
    if comm.nominal_share:
        source = f" ({plain(rate_source)})" if rate_source else ""
        parts.append(f"{percent(comm.nominal_share)} of nominal{source}")
    if comm.free_speedup:
        parts.append(free_line(comm.free_speedup))
    if comm.hidden_share:
        parts.append(f"{percent(comm.hidden_share)} of the transfer hidden behind compute")
    return "; ".join(parts)


def free_line(speedup: results.Measured) -> str:
    """The speedup that a perfect network would give."""
    if not speedup.tells:
        return f"faster by an {UNKNOWN} factor if communication were free"
    low, high = max(1.0, speedup.low or 1.0), speedup.high
    within = "" if speedup.low is None or high is None else f" ({number(low, 2)} to {number(high, 2)})"
    return (
        f"at most x{number(max(1.0, speedup.value), 2)}{within} faster if communication were free, with compute "
        "and optimizer steps as they are"
    )


def level_line(level: results.FabricLevel) -> str:
    """One level of the fabric: latency a hop and bandwidth, with the nominal rate where known."""
    return f"{plain(level.name)}, {ranks(level.world_size)}: {level_figures(level)}"


def level_figures(level: results.FabricLevel) -> str:
    """Figures of a level without its name."""
    rate = "unknown" if level.nominal_gbit_s is None else f"{number(level.nominal_gbit_s)} Gbit/s"
    alpha, busbw = quantity(level.alpha_us, "us"), quantity(level.busbw_gbit_s, "Gbit/s")
    off = "" if level.fit_error is None else f" (a line with these is {level.fit_error:.0%} off its points)"
    host = f", host latency {quantity(level.host_latency_us, 'us')}" if level.host_latency_us else ""
    return f"alpha {alpha} a hop, busbw {busbw}{off}, nominal {rate}{host}"


def verdict_title(verdict: results.Verdict) -> str:
    """The finding as a headline: `link bandwidth, 33.1 % ±0.4 of the step at 2 ranks`."""
    share = f", {percent(verdict.share)} of the step" if verdict.share else ""
    name = IN_WORDS.get(verdict.cause, text.cause_name(verdict.cause))
    return f"{name}{share} at {ranks(verdict.world_size)}"


def measured_lines(quality: results.Quality) -> tuple[str, ...]:
    """How well the numbers are known."""
    lines = list(map(plain, quality.reached))
    if quality.clock_bound_us:
        lines.append(f"the ranks' clocks are known to within {quality.clock_bound_us:.0f} us")
    if quality.device_clock_bound_us:
        bound = number(quality.device_clock_bound_us, 2)
        lines.append(f"the devices' events are told in host time to within {bound} us")
    if quality.details is not None:
        lines.append(details_line(quality.details))
    if quality.dropped_samples:
        lines.append(f"{count(quality.dropped_samples, 'sample')} dropped")
    return tuple(lines)


def details_line(details: results.Details) -> str:
    """What stamps of single collectives cost the step, and why nothing rests on them."""
    if details.over_light is None and details.unused:
        return plain(details.unused)
    cost = f"steps with details take {percent(details.over_light)} of those with phase stamps alone"
    if not details.unused:
        return cost
    return f"{cost}; no cause rests on details: {plain(details.unused)}; bandwidth and transfers by bucket are theirs"


def trial_line(trial: results.TrialStatus) -> str:
    """A trial that did not finish: how it ended, where, and with which error."""
    where = "" if trial.rank is None else f" on rank {trial.rank}"
    error = f": {plain(trial.error)}" if trial.error else ""
    return f"{ranks(trial.world_size)}: {text.status_name(trial.status)}{where}{error}"


def gain(remedy: results.Remedy) -> str:
    """`: +43 % throughput predicted (what that assumes)`, or what it changes where nothing was predicted."""
    assumed = f" ({plain(remedy.assumes)})" if remedy.assumes else ""
    predicted = f": {change(remedy.predicted_gain)} throughput predicted" if remedy.predicted_gain else ""
    return f"{predicted}{assumed}"


def fabric_lines(fabric: results.Fabric) -> tuple[str, ...]:
    """A line for each level that was swept, then NCCL's paths."""
    return (*map(level_line, fabric.levels), *map(plain, fabric.others), *nccl_lines(fabric.nccl))


def nccl_lines(log: results.NcclLog | None) -> tuple[str, ...]:
    """NCCL's transports, a line for each world size, and its algorithms where its log names them."""
    if log is None:
        return ()
    name = f"NCCL {plain(log.version)}" if log.version else "NCCL"
    lines = []
    for group in log.groups:
        over = ", ".join(map(plain, group.transports)) or "no channel of its own"
        adds = " and ".join(group.in_network)
        above = f"; with {adds} the switches add up: a share above 100 % is no error" if adds else ""
        lines.append(f"{name}, {ranks(group.world_size)}: {over}{above}")
    lines += [
        f"{plain(choice.collective)} by {plain(choice.algorithm)}, {plain(choice.protocol)}: "
        f"{format_bytes(choice.bytes_min)} to {format_bytes(choice.bytes_max)}"
        for choice in log.choices
    ]
    return tuple(lines)
