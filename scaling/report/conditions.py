"""The conditions under which a run's numbers are valid, as names and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from scaling.analysis.results import LAUNCHES_MIN, RunInfo
from scaling.plain import plain
from scaling.report.text import case_batches, count, moment, precisions, ranks
from scaling.settings.parallel import OWN, PIPELINED, Fsdp, show_reshard
from scaling.settings.plan import HARNESS, TRACE, Plan
from scaling.settings.run import Ddp, Inject, Spec
from scaling.units import format_duration, format_rate


def conditions(run: RunInfo, plan: Plan | None = None) -> tuple[tuple[str, str], ...]:
    """The conditions as (name, text); without a plan only those that the results contain."""
    return tuple((name, plain(text)) for name, text in _conditions(run, plan))


def _conditions(run: RunInfo, plan: Plan | None) -> Iterator[tuple[str, str]]:
    synthetic = ", SYNTHETIC compute (sleeps; parameters and traffic are real)" if run.synthetic else ""
    yield "model", f"{run.model}{synthetic}"
    yield "precision", run.precision if plan is None else precisions(plan.spec)
    if plan is None:
        yield "scaling", run.mode
        yield "topology", run.topology
    else:
        yield from _planned(plan)
    named = f" ({run.device_name})" if run.device_name else ""
    modelled = ", SIMULATED: all times are those of a model" if run.simulated else ""
    yield "backend", run.backend
    yield "device", f"{run.device}{named}{modelled}"
    took = ""
    if plan is None or plan.source != TRACE:
        launched = "1 launch" if run.launches == 1 else f"{run.launches} launches"
        if plan is not None:
            launcher = plan.kind.name if plan.kind.followed else plan.spec.launcher
            launched = f"{launcher}, {launched}, {count(plan.spec.threads, 'thread')} a rank"
        yield "launch", f"{launched}{f', ranks {run.binding}' if run.binding else ''}"
        if plan is not None:
            yield "measure", _measure(plan)
        took = f", took {format_duration(run.duration_s)}"
    yield "run", f"{run.id}, {moment(run.started)}{took}"


def _batch(plan: Plan) -> str:
    spec = plan.spec
    if spec.parallel.name == PIPELINED:
        return f"{spec.batch_per_rank} over all ranks, in {spec.accumulation_steps} microbatches"
    batch = f"{spec.batch_per_rank} a rank" if spec.mode == "weak" else f"{spec.global_batch} over all ranks"
    micro = f", {spec.accumulation_steps} accumulation steps" if spec.accumulation_steps > 1 else ""
    scaled_so = "" if plan.kind.followed else f" ({spec.mode} scaling)"
    return f"{batch}{scaled_so}{micro}"


def _measure(plan: Plan) -> str:
    m = plan.spec.measure
    if plan.kind.followed:
        return f"rounds of {m.steps} steps, evenly over the loop; 95 % intervals over stretches of rounds"
    rounds = f"{m.name}, {m.rounds_min} to {m.rounds_max} rounds, blocks of {count(m.steps, 'step')}"
    return f"{rounds}; 95 % intervals over {'launches' if plan.spec.repeats >= LAUNCHES_MIN else 'rounds'}"


def _planned(plan: Plan) -> Iterator[tuple[str, str]]:
    spec, top = plan.spec, plan.spec.topology
    if plan.source == HARNESS or spec.batch_per_rank:
        yield "batch", case_batches(spec) if spec.kind.by_cases else _batch(plan)
    if len(spec.strategies) > 1:
        named = ", ".join(strategy.parallel.name for strategy in spec.strategies)
        yield "strategies", f"{named}, in turns in one launch; figures without a name are the first one's"
    elif spec.parallel.sharded or spec.parallel.name in (OWN, PIPELINED):
        yield "parallel", _strategy(spec)
    placed = ", ranks spread over the hosts, all of them at work" if top.spread else ""
    yield "topology", f"{top.name}, {count(top.hosts, 'host')} x {ranks(top.ranks_per_host)}{placed}"
    if top.hosts > 1 or top.link.rate_bit_s is not None:
        rate = "rate unknown" if top.link.rate_bit_s is None else f"{format_rate(top.link.rate_bit_s)} a host"
        yield "link", f"{rate}{f' ({top.link.source})' if top.link.source else ''}"
    if top.note:
        yield "note", top.note
    if spec.data.target is not None:
        loading = f"{count(spec.data.workers, 'worker')} a rank, {spec.data.prefetch} batches ahead each"
        yield "data", f"{spec.data.name}, {loading if spec.data.workers else 'made in the training process'}"
    if settings := _settings(spec):
        yield "settings", ", ".join(settings)
    if spec.inject.active:
        yield "INJECTED", ", ".join(_changed("inject.", spec.inject))


def _strategy(spec: Spec) -> str:
    """The strategy and its mesh at the largest world size."""
    n = max(spec.world_sizes)
    degrees = " x ".join(f"{axis.name} {axis.size}" for axis in spec.parallel.mesh(n).dimensions)
    how = spec.pipeline
    turns = f", {how.schedule}, {count(how.stages_per_rank, 'stage')} a rank" if how.schedule else ""
    by_tokens = ", tokens divided between divided layers (sequence)" if spec.parallel.sequence else ""
    return f"{spec.parallel.name}{f', {degrees} at {ranks(n)}' if degrees else ''}{turns}{by_tokens}"


def _fsdp(spec: Spec) -> list[str]:
    """The settings of fully_shard that are not torch's usual ones, as they are written."""
    usual = Fsdp().reshard
    reshard = [] if spec.fsdp.reshard == usual else [show_reshard(spec.fsdp.reshard)]
    named = [f"fsdp.reshard_after_forward={value}" for value in reshard]
    return named + _changed("fsdp.", replace(spec.fsdp, reshard=usual))


def _settings(spec: Spec) -> list[str]:
    """Settings of the whole run. Those that vary between cases are left out, since each case names its own."""
    varied = {f.name for f in fields(spec.vary) if getattr(spec.vary, f.name)}
    switches = [
        f.name
        for f in fields(spec)
        if f.default is False and f.name not in {"batch_max", *varied} and getattr(spec, f.name)
    ]
    environment = [f"env.{name}={value}" for name, value in spec.env.items()]
    of_strategy = [*_changed("ddp.", spec.ddp), *_fsdp(spec)]
    return [f"{name}=true" for name in switches] + of_strategy + environment


def _changed(prefix: str, settings: Ddp | Fsdp | Inject) -> list[str]:
    """Settings that are not the usual ones, as they are written."""
    usual = type(settings)()
    pairs = ((f.name, getattr(settings, f.name), getattr(usual, f.name)) for f in fields(settings))
    return [f"{prefix}{name}={str(value).lower()}" for name, value, default in pairs if value != default]
