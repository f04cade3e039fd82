"""From the tryout's steps to what a launch takes, and to what a run says at its start. Pure: no I/O, no torch."""

from __future__ import annotations

import math

from scaling.spec import sweep
from scaling.spec.batch_search import LAUNCHES_MAX
from scaling.spec.budget import BLOCK_S, CaseCosts, Costs, fit_cases, fit_training
from scaling.spec.cases import Case, batches, cases, ladder, variants
from scaling.spec.machine import Machine
from scaling.spec.plan import Plan, Trial
from scaling.spec.promise import DETAILS, DividedStep, Fitted, Promise, Sample, Timing
from scaling.spec.run import Spec
from scaling.spec.sample import Traffic

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
AWAKE_S = 0.001
"""What the rest of the synthetic model's step takes of a core."""


def synthetic_timing(spec: Spec, machine: Machine) -> Timing:
    """The timing of a model whose compute is sleeps: it follows from the settings."""
    args = spec.model.args
    parameters = float(args["param_mb"]) * 2**20
    a_sample = float(args["compute_ms"]) / 1e3 / float(args["reference_batch"])
    if spec.task == "inference":
        a_sample, parameters = a_sample / 3, 0.0  # forward alone (scaling.worker.models.synthetic)
    start_s = PROCESS_S * max(1.0, (1 + machine.beside) / machine.cores)
    samples = tuple(
        Sample(batch=batch, step_s=batch * a_sample + parameters / BYTES_S + AWAKE_S) for batch in (2, 64)
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
    step_s, alone_s, exchange_s, sweep_s, traffic = {}, {}, {}, {}, {}
    for trial in (*plan.trials, *plan.baseline(plan.trials)):
        n = trial.world_size
        alone_s[n] = spec.accumulation_steps * timing.step_s(trial.batch / spec.accumulation_steps)
        stall_s, many = spec.inject.stalls_s if n > 1 else 0.0, len(spec.strategies)
        share, exchange_s[n] = 0.0, 0.0  # means over strategies side by side, whose blocks are as many
        for one in spec.strategies:
            part, sends_s = _divided_s(one, timing, trial)
            share += part / many
            exchange_s[n] += (_gradients_bytes(one, timing, n) / _bytes_s(spec, n) + sends_s) / many
        hops_s = _hops_s(plan, n, machine)
        buckets = _buckets(timing.parameters_bytes, spec.ddp.bucket_cap_mb)
        exchange_s[n] += hops_s * buckets
        own_s = alone_s[n] * share * _slower(plan, n, machine) + _crowding_s(plan, timing, n, machine)
        step_s[n] = own_s + exchange_s[n] + stall_s
        sweep_s[n] = _sweep_s(spec, n, hops_s)
        traffic[n] = _traffic(spec, timing, n, buckets)
    block_s = {n: BLOCK_S * machine.shared(local_ranks(plan, n)) for n in step_s}
    return Costs(
        step_s=step_s,
        alone_s=alone_s,
        exchange_s=exchange_s,
        sweep_s=sweep_s,
        block_s=block_s,
        traffic=traffic,
    )


def _traffic(spec: Spec, timing: Timing, world_size: int, buckets: int) -> Traffic:
    """About what a rank records. What a sharded module sends is counted in the launch alone."""
    tensor = spec.parallel.mesh(world_size).tensor
    divided = sum(one.calls for one in timing.divided if one.tensor == tensor) * spec.accumulation_steps
    kinds, backend = range(len(spec.measure.collectives)), spec.topology.backend
    swept = sweep.messages(kinds, list(sweep.sizes(sweep.largest(spec.measure, backend), backend)), backend)
    return Traffic(calls=buckets + divided, swept=len(swept))


def local_ranks(plan: Plan, world_size: int) -> int:
    """Ranks of a trial that compute on this machine's cores; 0 where they have devices, or hosts of their own."""
    if plan.spec.topology.device != "cpu" or plan.spec.launcher == "slurm":
        return 0
    return sum(map(len, plan.sub_groups(world_size)))


def _hops_s(plan: Plan, world_size: int, machine: Machine) -> float:
    """What a message takes beside its bytes among more ranks than cores; a small one's usual time holds it else."""
    at_work = local_ranks(plan, world_size)
    return machine.hops_s(world_size, at_work) if at_work > machine.cores else 0.0


def _buckets(gradients_bytes: int, cap_mb: float) -> int:
    """About how many messages DDP makes of them; its first bucket has a MiB."""
    return 1 + math.ceil(max(0.0, gradients_bytes / 2**20 - 1) / cap_mb)


def _crowding_s(plan: Plan, timing: Timing, world_size: int, machine: Machine) -> float:
    """How much longer a step takes whose compute is sleeps, since ranks share cores for the rest of it."""
    if not plan.spec.model.synthetic:
        return 0.0
    awake_s = plan.spec.accumulation_steps * AWAKE_S + timing.parameters_bytes / BYTES_S
    return awake_s * (machine.shared(local_ranks(plan, world_size)) - 1)


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
    here = local_ranks(plan, world_size)
    return 1.0 if plan.spec.model.synthetic or here == 0 else machine.slower(here * plan.spec.threads)


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


def _sweep_s(spec: Spec, world_size: int, hops_s: float) -> float:
    """One size sweep, as far as one measurement stays affordable. `hops_s`: of each message beside its bytes."""
    if world_size == 1:
        return 0.0
    backend, took = spec.topology.backend, dict[int, float]()
    for size in sweep.sizes(sweep.largest(spec.measure, backend), backend):
        took[size] = size / _bytes_s(spec, world_size) + max(MESSAGE_S, hops_s)
        if not sweep.affordable(took[size], size, spec.measure, backend):
            break
    if not sweep.streamed(backend) and not hops_s:  # MESSAGE_S is enough for the repeats of a small message
        return sum(took.values()) * len(spec.measure.collectives)
    sent = sweep.messages([0], list(took), backend)
    return sum(took[message.bytes] * message.sent for message in sent) * len(spec.measure.collectives)
