"""What a run's numbers hold for, as names and sentences: the same in every renderer."""

from __future__ import annotations

from dataclasses import fields

from scaling.analysis.results import LAUNCHES_MIN, RunInfo
from scaling.cases import batches
from scaling.plan import Plan
from scaling.report.text import count, moment, plain, ranks
from scaling.spec import Ddp, Inject, Spec
from scaling.units import format_bytes, format_duration, format_rate


def conditions(run: RunInfo, plan: Plan | None = None) -> tuple[tuple[str, str], ...]:
    """What the numbers hold for, as (name, text). Without a plan: what the run says of itself."""
    synthetic = ", SYNTHETIC compute (sleeps; parameters and traffic are real)" if run.synthetic else ""
    precision = precisions(plan.spec) if plan is not None else run.precision
    lines = [("model", f"{run.model}{synthetic}"), ("precision", precision)]
    if plan is None:
        lines += [("scaling", run.mode), ("topology", run.topology)]
    else:
        lines += _spec_lines(plan.spec)
    named = f" ({run.device_name})" if run.device_name else ""
    lines += [("backend", run.backend), ("device", f"{run.device}{named}")]
    traced = plan is not None and plan.spec.launcher == "trace"
    launched = f"{count(run.launches, 'launch') if run.launches == 1 else f'{run.launches} launches'}"
    if plan is not None and not traced:
        launched = f"{plan.spec.launcher}, {launched}, {count(plan.spec.threads, 'thread')} a rank"
    if not traced:
        lines.append(("launch", launched))
    if plan is not None and not traced:
        lines.append(("measure", _measure(plan.spec)))
    took = "" if traced else f", took {format_duration(run.duration_s)}"
    lines.append(("run", f"{run.id}, {moment(run.started)}{took}"))
    return tuple((name, plain(text)) for name, text in lines)


def precisions(spec: Spec) -> str:
    """All that are measured."""
    return ", ".join(spec.vary.precision or (spec.precision,))


def case_batches(spec: Spec) -> str:
    """The batches of a run by cases, and its task."""
    listed = "the largest that fits, and up to it" if spec.batch_max else ", ".join(map(str, batches(spec)))
    limit = f", in {format_bytes(spec.memory_limit_bytes)} a rank" if spec.memory_limit_bytes else ""
    return f"{listed}{limit}, each a rank; {spec.task}"


def _batch(spec: Spec) -> str:
    batch = f"{spec.batch_per_rank} a rank" if spec.mode == "weak" else f"{spec.global_batch} over all ranks"
    micro = f", {spec.accumulation_steps} accumulation steps" if spec.accumulation_steps > 1 else ""
    scaled_so = "" if spec.own_loop else f" ({spec.mode} scaling)"
    return f"{batch}{scaled_so}{micro}"


def _measure(spec: Spec) -> str:
    m = spec.measure
    if spec.own_loop:
        return f"rounds of {m.steps} steps, evenly over the loop; 95 % intervals over stretches of rounds"
    rounds = f"{m.name}, {m.rounds_min} to {m.rounds_max} rounds, blocks of {count(m.steps, 'step')}"
    return f"{rounds}; 95 % intervals over {'launches' if spec.repeats >= LAUNCHES_MIN else 'rounds'}"


def _spec_lines(spec: Spec) -> list[tuple[str, str]]:
    top = spec.topology
    placed = ", ranks spread over the hosts, all of them at work" if top.spread else ""
    hosts = f"{count(top.hosts, 'host')} x {ranks(top.ranks_per_host)}{placed}"
    unknown = (spec.own_loop or spec.launcher == "trace") and not spec.batch_per_rank
    lines = [] if unknown else [("batch", case_batches(spec) if spec.by_case else _batch(spec))]
    lines.append(("topology", f"{top.name}, {hosts}"))
    if top.hosts > 1 or top.link.rate_bit_s is not None:
        rate = "rate unknown" if top.link.rate_bit_s is None else f"{format_rate(top.link.rate_bit_s)} a host"
        source = f" ({top.link.source})" if top.link.source else ""
        lines.append(("link", f"{rate}{source}"))
    if top.note:
        lines.append(("note", top.note))
    if spec.data.target is not None:
        made = f"{count(spec.data.workers, 'worker')} a rank, {spec.data.prefetch} batches ahead each"
        lines.append(
            ("data", f"{spec.data.name}, {made if spec.data.workers else 'made in the training process'}")
        )
    settings = _settings(spec)
    if settings:
        lines.append(("settings", ", ".join(settings)))
    injected = _changed("inject.", spec.inject, Inject())
    if spec.inject.active:
        lines.append(("INJECTED", ", ".join(injected)))
    return lines


def _settings(spec: Spec) -> list[str]:
    """What is set for all of the run: not what its cases differ in, which they say themselves."""
    varied = {f.name for f in fields(spec.vary) if getattr(spec.vary, f.name)}
    switches = [
        f.name
        for f in fields(spec)
        if f.default is False and f.name not in {"batch_max", *varied} and getattr(spec, f.name)
    ]
    environment = [f"env.{name}={value}" for name, value in spec.env.items()]
    return [f"{name}=true" for name in switches] + _changed("ddp.", spec.ddp, Ddp()) + environment


def _changed(prefix: str, settings: Ddp | Inject, default: Ddp | Inject) -> list[str]:
    pairs = ((f.name, getattr(settings, f.name), getattr(default, f.name)) for f in fields(settings))
    return [f"{prefix}{name}={str(value).lower()}" for name, value, usual in pairs if value != usual]
