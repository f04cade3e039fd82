"""`scaling plan`: print what would run and write nothing. With --time it runs a few steps, to say how long it takes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scaling.cli.measuring import end_in_order
from scaling.cli.output import print_json, say
from scaling.cli.simulated_run import refuse_simulated
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.launchers.jobs import jobs_of, launcher_of
from scaling.launchers.launcher import LaunchRequest
from scaling.launchers.launcher import describe as shell
from scaling.launchers.torchrun import mps_line, shares_gpu
from scaling.launchers.tryout import promised
from scaling.records import files
from scaling.records.paths import RunFolder
from scaling.report.progress import takes
from scaling.report.text import case_batches, count, precisions
from scaling.settings import sample
from scaling.settings.cases import batches, cases, variants
from scaling.settings.estimate import left_out_lines
from scaling.settings.plan import ORDER, Plan
from scaling.settings.run import WARMUP_SHARE, Spec
from scaling.settings.schedule import round_blocks
from scaling.settings.timeouts import MEASURED_RANKS, joining, start_limit_s
from scaling.settings.topology import Topology
from scaling.units import format_duration, format_rate, ranks


def main(arguments: list[str]) -> int:
    """Print every run that the overrides ask for, as text or as one JSON document."""
    end_in_order()
    rest, given = split("plan", arguments)
    refuse_simulated("plan", rest)
    asked = requests("plan", rest)
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    if given.time:
        jobs = [dataclasses.replace(job, plan=promised(job.plan)) for job in jobs]
    if given.json and jobs:
        documents = [document(job.plan, job.folder) for job in jobs]
        print_json(documents[0] if len(documents) == 1 else {"plans": documents})
    elif jobs:
        say(*(line for job in jobs for line in describe(job.plan, job.folder).split("\n")))
    return 0


START_S = 20.0
"""Approximate time on two cores to start torchrun, import torch, wrap the model, and to write the report."""


def document(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """The plan as JSON, with its commands and the longest time it would take (without a search for `batch=max`).

    `seconds` and `left_out` are null where no step was timed.
    """
    promise = plan.promise
    return {
        **files.encode(plan),
        "cases": files.encode(cases(plan.spec)) if plan.spec.kind.by_cases else [],
        "run_dir": str(folder.path),
        "seconds_max": _seconds(plan),
        "seconds": round(promise.seconds, 1) if promise else None,
        "left_out": list(left_out_lines(plan, plan.content)) if promise else None,
        "idle_rank_hours_max": _idle_rank_hours(plan),
        "commands": _commands(plan, folder).splitlines(),
    }


def describe(plan: Plan, folder: RunFolder) -> str:
    """The plan as text."""
    return "\n".join([*_lines(plan, folder), "#", _commands(plan, folder)])


def _lines(plan: Plan, folder: RunFolder) -> Iterator[str]:
    spec, topology, measure = plan.spec, plan.spec.topology, plan.spec.measure
    link = f", link {format_rate(topology.link.rate_bit_s)}" if topology.link.rate_bit_s else ""
    yield f"# model     {spec.model.name} {spec.model.args}, {precisions(spec)}, {_asked(spec)}"
    yield (
        f"# topology  {topology.name}: {count(topology.hosts, 'host')} x {count(topology.ranks_per_host, 'rank')}, "
        f"{'spread over the hosts, ' if topology.spread else ''}{topology.device}, {topology.backend}{link}"
    )
    yield from (f"#           {line}" for line in drawn(topology))
    if topology.note:
        yield f"#           {topology.note}"
    if shares_gpu(spec):
        yield f"#           {mps_line()}"
    if spec.model.synthetic:
        yield "#           SYNTHETIC compute: sleeps, not arithmetic"
    if len(spec.strategies) > 1:
        yield f"# parallel  {', '.join(s.parallel.name for s in spec.strategies)}, in turns"
    yield (
        f"# measure   {measure.name}: {measure.rounds_min} to {measure.rounds_max} rounds, "
        f"{format_duration(measure.budget_s)} a launch after at most "
        f"{format_duration(WARMUP_SHARE * measure.budget_s)} of warm-up ({WARMUP_SHARE:.0%} of the budget), "
        f"{spec.repeats} {'launch' if spec.repeats == 1 else 'launches'}"
    )
    yield from _time(plan)
    yield from _on_cluster(plan)
    yield (
        f"#           {_idle_rank_hours(plan):.3f} {'GPU' if topology.accelerated else 'rank'}-hours stand idle "
        "while smaller world sizes run"
    )
    yield f"# run_dir   {folder.path}"
    yield "#"
    if spec.kind.by_cases:
        yield from _cases(spec)
        return
    yield "# world size  hosts  batch a rank  blocks a round  sub-groups at once"
    each = Counter(b.trial.world_size for b in round_blocks(plan, plan.trials, 0, 0))
    for t in plan.trials:
        yield (
            f"#   {t.world_size:>8}  {t.hosts:>5}  {t.batch:>12}  {each[t.world_size]:>14}"
            f"  {len(plan.sub_groups(t.world_size)):>18}"
        )


def _asked(spec: Spec) -> str:
    if spec.kind.by_cases:
        return f"batch {case_batches(spec)}"
    batch = f"global batch {spec.global_batch}" if spec.mode == "strong" else f"{spec.batch_per_rank} a rank"
    return f"{spec.mode} scaling, {batch}"


def drawn(topology: Topology) -> Iterator[str]:
    """A host's devices in the groups that each level joins, innermost first, and its network cards; one a line."""
    size = topology.ranks_per_host
    for level in topology.levels:
        groups = [range(first, min(first + level.ranks, size)) for first in range(0, size, level.ranks)]
        rate = "rate unknown" if level.rate_bit_s is None else f"{format_rate(level.rate_bit_s)} a rank"
        hop = "" if level.latency_us is None else f", {level.latency_us:.3g} us a hop"
        source = f" ({level.source})" if level.source else ""
        name = f"{level.name} {level.link_class}".strip() if level.link_class != level.name else level.name
        yield f"{name:<14} {_joined(groups)}  {rate}{hop}{source}"
    inner = topology.levels[0].ranks if topology.levels else 0
    if any(len(island) != inner for island in topology.islands):
        yield f"{'islands':<14} {_joined(topology.islands)}"
    if len(topology.numa) > 1:
        yield f"{'NUMA':<14} {_joined(topology.numa)}"
    for nic in topology.nics:
        rate = "" if nic.rate_bit_s is None else f"  {format_rate(nic.rate_bit_s)}"
        yield f"{nic.name:<14} {nic.link_class} to {_joined([nic.near])}{rate}"


def _joined(groups: Iterable[Sequence[int]]) -> str:
    """Devices that are joined: `[0-3] [4 6]`."""
    in_words = []
    for group in groups:
        in_a_row = len(group) > 3 and group[-1] - group[0] == len(group) - 1
        in_words.append(f"{group[0]}-{group[-1]}" if in_a_row else " ".join(map(str, group)))
    return " ".join(f"[{words}]" for words in in_words)


def _cases(spec: Spec) -> Iterator[str]:
    """The settings that are measured at each world size, in turns."""
    *smaller, largest = spec.world_sizes
    yield f"# {spec.task}, at {''.join(f'{n}, ' for n in smaller)}{ranks(largest)}:"
    if spec.batch_max:
        yield "#   first a search for the largest batch of each setting, and its proof in fresh processes"
    asked = "max" if spec.batch_max else ", ".join(map(str, batches(spec)))
    for variant in variants(spec):
        words = [variant.precision]
        words += [name for name in ("autocast", "compile", "checkpointing") if getattr(variant, name)]
        words += [f"{variant.accumulation_steps} micro-steps"] if variant.accumulation_steps > 1 else []
        yield f"#   {', '.join(words)}: batch {asked}"


def _commands(plan: Plan, folder: RunFolder) -> str:
    launcher, sizes = launcher_of(plan), tuple(t.world_size for t in plan.trials)
    launches = [
        LaunchRequest(plan=plan, folder=folder, launch=folder.launch(k), world_sizes=sizes)
        for k in range(plan.spec.repeats)
    ]
    return "".join(shell(launcher.command(launch)) for launch in launches).rstrip()


def _time(plan: Plan) -> list[str]:
    """How long it takes, if a step was timed, and what the budget leaves no time for."""
    search = " after the search for the largest batch" if plan.spec.batch_max else ""
    order = f"#           what does not fit is left out, in this order: {ORDER}"
    if plan.promise is None:
        longest = format_duration(_seconds(plan))
        return [
            f"# time      unknown until one step has been timed (`scaling plan --time`); at most {longest} by its "
            f"budget{search}",
            order,
        ]
    left_out = left_out_lines(plan, plan.content) or ("the budget holds all of it",)
    parts = takes(plan).removeprefix(": ")
    return [f"# time      {parts}", *(f"#           {line}" for line in left_out), order]


def _on_cluster(plan: Plan) -> Iterator[str]:
    """What rank files may take where many hosts write them, how long a launch may take to begin, and how many jobs."""
    if plan.spec.launcher != "slurm":
        return
    if not plan.spec.kind.by_cases:
        yield f"#           rank files: {sample.bound(plan)}; beyond it only some rounds have details"
    estimate, many = joining(plan), plan.spec.cluster.allocations
    yield (
        f"# start-up  a launch may take {format_duration(start_limit_s(plan))} to begin: "
        f"{format_duration(plan.spec.cluster.start_s)} (cluster.start_s) and what {ranks(plan.ranks)} on "
        f"{count(plan.hosts, 'host')} take to join, {estimate.low_s:.1f} to {estimate.high_s:.1f} s"
    )
    if not estimate.measured:
        yield f"#           that is extrapolated: joining was measured up to {MEASURED_RANKS} ranks of Gloo"
    if many > 1:
        yield f"#           {many} such jobs, each on nodes of its own (cluster.allocations)"


def _seconds(plan: Plan) -> float:
    start_s = start_limit_s(plan) if plan.spec.launcher == "slurm" else START_S
    return (plan.spec.measure.longest_s + start_s) * plan.spec.repeats


def _idle_rank_hours(plan: Plan) -> float:
    """Rank-hours of waiting while other ranks run, over the whole budget; all blocks of a round count alike."""
    spec = plan.spec
    if spec.kind.by_cases:
        busy = list(spec.world_sizes)
    else:
        busy = [block.participants for block in round_blocks(plan, plan.trials, 0, 0)]
    idle = sum(plan.ranks - ranks_at_work for ranks_at_work in busy) / len(busy)
    return idle * spec.measure.budget_s * spec.repeats / 3600
