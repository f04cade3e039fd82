"""From the tryout's steps to what a launch takes, and to what a run says at its start. Pure: no I/O, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.spec import sweep
from scaling.spec.batch_search import LAUNCHES_MAX
from scaling.spec.budget import CaseCosts, Costs, fit_cases, fit_training
from scaling.spec.cases import Case, batches, cases, ladder, variants
from scaling.spec.plan import Plan, Trial
from scaling.spec.promise import DETAILS, DividedStep, Fitted, Promise, Sample, Timing
from scaling.spec.run import Spec

SIDE_BY_SIDE = 1.1
"""Ranks on the same cores slow one another down by about this much, through caches and memory."""
LOOPBACK_BYTES_S, DEVICE_BYTES_S = 0.5e9, 10e9
"""About what an all-reduce moves where no link is named: Gloo on one machine, NCCL."""
MESSAGE_S = 0.003
"""A small message of the size sweep, with its repetitions."""
DEVICE_CALL_S = 5e-5
"""A small collective of a device's back end, with its launch."""
JOIN_S, HOST_S = 1.0, 0.5
"""To join the group, and to make an emulated host."""
ROOFLINE_S = 2.5
"""To measure the device's ceilings (see scaling.worker.checks.roofline)."""
END_STARTS, END_S = 1.2, 3.0
"""Analysis and reports, in starts of a process and on top of them."""
COMPILE_S = 20.0
"""About what compiling a case takes; the tryout does not time it."""
PROCESS_S = 2.5
"""About what a process takes to start and to import torch, on an idle core."""
BYTES_S = 0.7e9
"""About how fast the synthetic model's optimizer goes through its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cores that the run has, and how many other programs want them."""

    cores: int
    beside: float = 0.0
    """Processes that run beside this one."""

    def slower(self, processes: int) -> float:
        """How many times longer compute takes in each of some processes at once than in a single one."""
        if processes <= 1:
            return 1.0
        alone = min(1.0, self.cores / (1 + self.beside))
        together = min(1.0, self.cores / (processes + self.beside))
        return alone / together * SIDE_BY_SIDE


def synthetic_timing(spec: Spec, machine: Machine) -> Timing:
    """The timing of a model whose compute is sleeps: it follows from the settings."""
    args = spec.model.args
    parameters = float(args["param_mb"]) * 2**20
    a_sample = float(args["compute_ms"]) / 1e3 / float(args["reference_batch"])
    if spec.task == "inference":
        a_sample, parameters = a_sample / 3, 0.0  # forward alone (scaling.worker.models.synthetic)
    start_s = PROCESS_S * max(1.0, (1 + machine.beside) / machine.cores)
    samples = tuple(
        Sample(batch=batch, step_s=batch * a_sample + parameters / BYTES_S + 0.001) for batch in (2, 64)
    )
    return Timing(
        start_s=start_s,
        steps=samples,
        variants=(1.0,) * len(variants(spec)),
        parameters_bytes=int(parameters),
        divided=_synthetic_parts(spec),
    )


def _synthetic_parts(spec: Spec) -> tuple[DividedStep, ...]:
    """A synthetic layer adds up its activations once in forward and once in backward.

    By tokens each sum is a gather and a scatter, which move as much. One more gather in each stands at the ends.
    """
    layers, size = int(spec.model.args["layers"]), 4 * int(spec.model.args.get("activations", 1))
    by_tokens = spec.parallel.sequence
    found = []
    for n in spec.tensor_degrees:
        whole = 2 * (2 * layers + by_tokens)  # in gathers
        found.append(
            DividedStep(
                tensor=n,
                share=1 / n,
                bytes_a_sample=whole * size * (n - 1) / n,
                calls=whole if by_tokens else 2 * layers,
            )
        )
    return tuple(found)


def training_costs(plan: Plan, timing: Timing, machine: Machine) -> Costs:
    """What the pieces of a launch take that takes a training step apart."""
    spec = plan.spec
    step_s, alone_s, exchange_s, sweep_s = {}, {}, {}, {}
    for trial in (*plan.trials, *plan.baseline(plan.trials)):
        n = trial.world_size
        alone_s[n] = spec.accumulation_steps * timing.step_s(trial.batch / spec.accumulation_steps)
        stall_s, many = spec.inject.stalls_s if n > 1 else 0.0, len(spec.strategies)
        share, exchange_s[n] = 0.0, 0.0  # means over strategies side by side, whose blocks are as many
        for one in spec.strategies:
            part, sends_s = _divided_s(one, timing, trial)
            share += part / many
            exchange_s[n] += (_gradients_bytes(one, timing, n) / _bytes_s(spec, n) + sends_s) / many
        step_s[n] = alone_s[n] * share * _slower(plan, n, machine) + exchange_s[n] + stall_s
        sweep_s[n] = _sweep_s(spec, n)
    return Costs(step_s=step_s, alone_s=alone_s, exchange_s=exchange_s, sweep_s=sweep_s)


def _gradients_bytes(spec: Spec, timing: Timing, world_size: int) -> float:
    """What one link carries of the gradients in an all-reduce's terms: a rank's part, or that of a host's ranks."""
    mesh = spec.parallel.mesh(world_size)
    if mesh.tensor > 1 and mesh.data_parallel == 1:
        return 0.0
    together = spec.topology.ranks_per_host if spec.topology.hosts_of(world_size) > 1 else 1
    return timing.parameters_bytes * min(mesh.tensor, together) / mesh.tensor


def _divided_s(spec: Spec, timing: Timing, trial: Trial) -> tuple[float, float]:
    """What a rank computes as a share of the step of one rank alone, and how long divided layers send, s.

    The ranks of a group are neighbours, so that its link is one between hosts only where the group is larger than one.
    """
    tensor = spec.parallel.mesh(trial.world_size).tensor
    part = next((one for one in timing.divided if one.tensor == tensor), None)
    if tensor == 1:
        return 1.0, 0.0
    if part is None:  # it was not timed
        return 1 / tensor, 0.0
    call_s = MESSAGE_S / 2 if spec.topology.device == "cpu" else DEVICE_CALL_S
    sent_s = trial.batch * part.bytes_a_sample / _link_bytes_s(spec, tensor)
    return part.share, sent_s + spec.accumulation_steps * part.calls * call_s


def case_costs(plan: Plan, asked: tuple[Case, ...], timing: Timing, machine: Machine) -> CaseCosts:
    """What the pieces of a launch by cases take."""
    spec, known = plan.spec, variants(plan.spec)
    step_s, change_s = {}, {}
    for index, case in enumerate(asked):
        variant, micro = known.index(case.variant), case.variant.accumulation_steps
        one_s = micro * timing.step_s(case.batch / micro, variant)
        for n in spec.world_sizes:
            wire_s = 0.0 if spec.task == "inference" else timing.parameters_bytes / _bytes_s(spec, n)
            step_s[n, index] = one_s * _slower(plan, n, machine) + wire_s
        change_s[index] = timing.make_s * case.batch
    return CaseCosts(step_s=step_s, change_s=change_s)


def fit(plan: Plan, timing: Timing, machine: Machine) -> Fitted:
    """What fits into the budget, by the tryout's steps. With batch=max, of the batches that memory may hold."""
    if not plan.spec.by_case:
        return fit_training(plan, plan.trials, training_costs(plan, timing, machine))
    asked = _cases(plan.spec, timing)
    return fit_cases(plan, asked, case_costs(plan, asked, timing, machine))


def promise(plan: Plan, timing: Timing, machine: Machine, fitted: Fitted, tried_s: float) -> Promise:
    """How long the run takes. `tried_s`: what the tryout took."""
    spec = plan.spec
    sizes = [n for n in spec.world_sizes if fitted.content.holds(n)]
    starting = machine.slower(max(sizes) if spec.launcher != "slurm" else 1)
    # The launcher imports torch before it starts the ranks.
    start_s = timing.start_s * (1 + starting) + JOIN_S
    start_s += HOST_S * plan.hosts if spec.launcher == "emulated" else 0.0
    if spec.by_case:
        compiled = [case for case in _cases(spec, timing) if case.variant.compile]
        start_s += COMPILE_S * len(compiled)
    else:
        start_s += timing.first_s * 4 if spec.compile else 0.0
        start_s += ROOFLINE_S * starting if fitted.content.has(DETAILS) else 0.0
    search_s = 2 * start_s + search_limit_s(spec) if spec.batch_max else 0.0
    return Promise(
        tried_s=tried_s,
        start_s=start_s,
        search_s=search_s,
        warmup_s=fitted.warmup_s,
        rounds_s=fitted.rounds_s,
        end_s=END_STARTS * timing.start_s + END_S,
        launches=spec.repeats,
    )


def search_limit_s(spec: Spec) -> float:
    """How long the launches of a search for the largest batch may try batches, all together."""
    return spec.measure.budget_s


def _cases(spec: Spec, timing: Timing) -> tuple[Case, ...]:
    """The cases of a run; before the search of batch=max, those up to the largest batch that its time allows."""
    if not spec.batch_max:
        return cases(spec)
    most = 1
    for _ in range(LAUNCHES_MAX):
        # The search runs about 14 times the largest batch (see scaling.spec.batch_search), the proof another 4.
        if 18 * timing.step_s(2 * most) > search_limit_s(spec):
            break
        most *= 2
    rungs = {variant: ladder(most, variant.accumulation_steps) for variant in variants(spec)}
    return cases(spec, rungs)


def asked_batches(spec: Spec) -> tuple[int, ...]:
    """The batches of a run by cases, as far as they are known beforehand."""
    return batches(spec) if spec.by_case and not spec.batch_max else ()


def _slower(plan: Plan, world_size: int, machine: Machine) -> float:
    """How many times longer a step's compute takes in each rank of a trial than in one rank alone."""
    spec = plan.spec
    if spec.model.synthetic or spec.topology.device != "cpu" or spec.launcher == "slurm":
        return 1.0
    at_work = sum(map(len, plan.sub_groups(world_size)))
    return machine.slower(at_work * spec.threads)


def _bytes_s(spec: Spec, world_size: int) -> float:
    """About how fast an all-reduce goes through its bytes; infinite for a single rank."""
    if world_size == 1:
        return math.inf
    return _link_bytes_s(spec, world_size) / (2 * (world_size - 1) / world_size)


def _link_bytes_s(spec: Spec, ranks: int) -> float:
    """About what the slowest link of the first `ranks` ranks carries, bytes a second."""
    usual = LOOPBACK_BYTES_S if spec.topology.device == "cpu" else DEVICE_BYTES_S
    slowest = [
        rate / 8
        for rate in (spec.topology.link.rate_bit_s, spec.inject.link_rate_bit_s)
        if rate is not None and spec.topology.hosts_of(ranks) > 1
    ]
    return min([usual, *slowest])


def _sweep_s(spec: Spec, world_size: int) -> float:
    """One size sweep, as far as one measurement stays affordable."""
    if world_size == 1:
        return 0.0
    backend, took = spec.topology.backend, dict[int, float]()
    for size in sweep.sizes(sweep.largest(spec.measure, backend), backend):
        took[size] = size / _bytes_s(spec, world_size) + MESSAGE_S
        if not sweep.affordable(took[size], size, spec.measure, backend):
            break
    if not sweep.streamed(backend):  # MESSAGE_S is enough for the repeats of a small message
        return sum(took.values()) * len(spec.measure.collectives)
    sent = sweep.messages([0], list(took), backend)
    return sum(took[message.bytes] * message.sent for message in sent) * len(spec.measure.collectives)
