"""`python -m scaling.worker.checks.tryout`: try one step of a model before anything is launched, and time it.

It reads {"spec": ..., "batch": ..., "flops": ..., "time": ..., "step": ..., "began_s": ...} from standard input. If a
step that was asked for fails, or if `flops` is true and the step has none, it prints one line on standard error and
ends with status 2. With `time` it times steps, from few samples on until one takes long, and prints what is known
after each batch; scaling.settings.estimate says how long larger ones take.

The step has two samples and runs on the device that the run has here. Where the run's devices are elsewhere it runs on
the CPU. That one may lack what they have, so a failure there ends with status 75: it shows nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from scaling.errors import InputError
from scaling.records.files import decode, encode
from scaling.settings.cases import batches, variants
from scaling.settings.estimate import TimedStep, Timing
from scaling.settings.run import Data, Spec
from scaling.settings.topology import CPU, SIMULATED
from scaling.worker.accelerator.accelerator import Accelerator, Cpu, Precision
from scaling.worker.accelerator.devices import open_device
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.checks.work import watching
from scaling.worker.data.feed import open_feed
from scaling.worker.data.workload import Workload, build
from scaling.worker.measure.recorder import Usage
from scaling.worker.measure.step import Loop
from scaling.worker.models.options import compiled, loading, shaped
from scaling.worker.parallel.sharded import require_own_reduces
from scaling.worker.parallel.tensor import divide

SAMPLES = 2
"""Samples of the step; with one, batch normalisation fails."""
SHOWS_NOTHING = 75
"""Exit status where a step failed on another kind of device than the run's."""
GROWTH = 4
"""Each batch that is timed is this many times the one before."""
STEP_S = 1.0
"""A batch is timed if its step is expected to take no longer."""
STEPS, STEPS_S = 3, 4.0
"""The fastest of so many steps counts; no other begins after so many seconds."""


class StepError(InputError):
    """A step failed, or something on the way to it."""


def device_here(spec: Spec) -> Accelerator:
    """The device of the run if it is on this machine, else the CPU. InputError where it has none."""
    if spec.launcher == "slurm":
        return Cpu()
    try:
        return open_device(spec, rank=0, local_rank=0)
    except RuntimeError as error:
        raise InputError(str(error)) from error


def run_step(spec: Spec, batch: int, device: Accelerator) -> None:
    """Build, fetch, forward, backward and optimizer step of two samples. StepError says which of them failed.

    InputError where this torch lacks what the run asks of it.
    """
    if spec.fsdp.separate_reduce_scatter_group:
        require_own_reduces()
    what, stage = f"model._target_={spec.model.target}", "the factory"
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    samples, load = min(batch, SAMPLES), loading(spec, device.load)
    precision = Precision(spec.precision, device.type)
    try:
        workload = shaped(build(spec.model.target, spec.model.args), spec)
        workload.module.to(device.torch_device)
        if spec.data.target is None:
            stage = "make_batch"
            batched = open_feed(alone, workload, samples, rank=0, device=device).fetch()
        else:
            what, stage = f"data._target_={spec.data.target}", "the first batch"
            batched = _pair(open_feed(alone, workload, samples, rank=0, device=device).fetch())
            what = f"model._target_={spec.model.target} on data={spec.data.name}"
        stage = "the loss of one forward"
        inputs, targets = load(batched)
        module = workload.module
        if spec.compile and device.type == CPU:  # compiling for a CUDA device is another compiler's job
            what, module = f"compile=true: {what}", compiled(module)
        with precision.autocast():
            loss = workload.loss(module(inputs), targets)
        stage = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        stage = "the optimizer"
        workload.optimizer(workload.module.parameters()).step()
        device.synchronize()
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise StepError(f"{what}: {stage} failed: {type(error).__name__}: {text}") from error


def require_flops(spec: Spec, batch: int) -> None:
    """InputError when a step of a small synthetic batch has no FLOPs, or when it fails."""
    with watching("cpu") as work:
        run_step(dataclasses.replace(spec, data=Data(), compile=False), batch, Cpu())
    if not any(operator.flops for operator in work.operators()):
        raise InputError(
            f"model._target_={spec.model.target}: a step has no FLOPs (no matrix product and no convolution); "
            "the doctor needs a model that computes"
        )


def _may_fit_together(spec: Spec, error: InputError) -> bool:
    """Whether one rank alone has no room for the model, and several that share it may have some: the launch tells."""
    shared = max(spec.world_sizes) > 1 and any(strategy.parallel.sharded for strategy in spec.strategies)
    return shared and isinstance(error, StepError) and is_out_of_memory(error.__cause__ or error)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(f"samples of (inputs, targets) are expected, found {type(batch).__name__}")
    return batch[0], batch[1]


def require_divisible(spec: Spec, workload: Workload, device: Accelerator) -> None:
    """InputError for a layer that cannot be divided over as many ranks as the spec asks for.

    torch's `fake` back end stands for the other ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  slow to import
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    for degree in spec.tensor_degrees:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degree)
        try:
            mesh = init_device_mesh(device.type, (degree,), mesh_dim_names=("tensor",))
            divide(workload, copy.deepcopy(workload.module), mesh, sequence=spec.parallel.sequence)
        finally:
            dist.destroy_process_group()


def time_steps(spec: Spec, began_s: float) -> None:
    """Build the model and time its steps. Print the timing after each batch, what is known so far.

    `began_s`: time.monotonic() at the start of the process. A batch on which a step fails is passed over: the model may
    take others, and the launch says how it failed.
    """
    torch.set_num_threads(spec.threads)
    device = open_device(spec, rank=0, local_rank=0)
    workload = shaped(build(spec.model.target, spec.model.args), spec)
    workload.module.to(device.torch_device)
    if device.type != SIMULATED:
        require_divisible(spec, workload, device)
    trained = (p for p in workload.module.parameters() if p.requires_grad)
    timing = Timing(
        start_s=time.monotonic() - began_s,
        steps=(),
        parameters_bytes=sum(p.numel() * p.element_size() for p in trained),
    )
    make, watch, steps = _steps(spec, workload, device), _Watch(device), list[TimedStep]()
    batch: int | None = min(1 if spec.task == "inference" else SAMPLES, largest(spec))
    while batch is not None:
        try:
            step = make(batch)
            first_s, step_s = watch.step_s(step), watch.fastest_s(step)
        except Exception as error:  # noqa: BLE001  # a model may raise anything
            print(f"batch {batch}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            first_s = timing.first_s if steps else max(0.0, first_s - step_s)
            steps.append(TimedStep(batch=batch, step_s=step_s))
            waits = watch.whole_s / watch.awake_s
            now = tuple(dataclasses.replace(each, step_s=each.step_s * waits) for each in steps)
            timing = dataclasses.replace(timing, steps=now, first_s=first_s)
            print("timing", json.dumps(encode(timing)), flush=True)
        batch = following(spec, batch, timing)


def largest(spec: Spec) -> int:
    """The largest batch that is asked for, samples of a micro-step."""
    most = max(batches(spec)) if spec.kind.by_cases else max(spec.batch_at(n) for n in spec.world_sizes)
    return max(1, most // spec.accumulation_steps)


def following(spec: Spec, batch: int, timing: Timing) -> int | None:
    """The batch to time after `batch`; None when enough is known. Two batches are timed however long they take."""
    most, timed = largest(spec), len(timing.steps)
    if batch >= most:
        return None
    after = min(most, batch * GROWTH)
    if timed == 0 or timing.step_s(after) <= STEP_S:
        return after
    return min(most, 2 * batch) if timed == 1 else None


def _steps(spec: Spec, workload: Workload, device: Accelerator) -> Callable[[int], Callable[[], None]]:
    """Makes a step of one micro-step (in inference a forward) on a batch of the run's data; it waits for nothing."""
    alone = dataclasses.replace(spec, data=dataclasses.replace(spec.data, workers=0))
    module, load = workload.module, loading(spec, device.load)
    precision = Precision(variants(spec)[0].precision if spec.kind.by_cases else spec.precision, device.type)
    if spec.task == "inference":
        module.eval()
    elif spec.compile and device.type == CPU:  # in inference compiling takes longer than a tryout may
        module = compiled(module)
    optimizer = workload.optimizer(workload.module.parameters())

    def make(batch: int) -> Callable[[], None]:
        if spec.task == "inference":
            inputs, _ = load(workload.make_batch(batch, torch.Generator().manual_seed(spec.seed)))

            def forward() -> None:
                with torch.inference_mode(), precision.autocast():
                    module(inputs)

            return forward
        loop = Loop(
            workload=workload,
            module=module,
            optimizer=optimizer,
            fetch=open_feed(alone, workload, batch, rank=0, device=device).fetch,
            accumulation=1,
            device=device,
            precision=precision,
            load=load,
        )

        def step() -> None:
            with device.clock.window(loop.stamps):
                loop.plain()

        return step

    return make


class _Watch:
    """Times steps until the device is done with them.

    A step's waits for a core are chance, more so the fewer steps there are. So the fastest of some steps counts without
    its own, and for all steps together it is told how much these waits add.
    """

    def __init__(self, device: Accelerator) -> None:
        self._device, self.whole_s, self.awake_s = device, 0.0, 0.0

    def step_s(self, step: Callable[[], object]) -> float:
        """How long a step takes without waiting for a core."""
        with Usage() as usage:
            step()
            self._device.synchronize()
        begin, end = usage.begin, usage.end
        whole_ns, waited_ns = end.time_ns - begin.time_ns, max(0, end.delayed_ns - begin.delayed_ns)
        awake_s = max(whole_ns - waited_ns, end.thread_cpu_ns - begin.thread_cpu_ns) / 1e9
        self.whole_s, self.awake_s = self.whole_s + whole_ns / 1e9, self.awake_s + awake_s
        return awake_s

    def fastest_s(self, step: Callable[[], object]) -> float:
        """The least of a few steps."""
        end, steps_s = time.monotonic() + STEPS_S, [self.step_s(step)]
        while len(steps_s) < STEPS and time.monotonic() < end:
            steps_s.append(self.step_s(step))
        return min(steps_s)


if __name__ == "__main__":
    document = json.load(sys.stdin)
    asked = decode(Spec, document["spec"])
    try:
        if document["flops"]:
            require_flops(asked, document["batch"])
        elif document["step"]:
            run_step(asked, document["batch"], device_here(asked))
        if document["time"]:
            time_steps(asked, document["began_s"])
    except InputError as error:
        print(error, file=sys.stderr)
        if _may_fit_together(asked, error):
            sys.exit(0)
        elsewhere = asked.launcher == "slurm" and asked.topology.accelerated
        sys.exit(SHOWS_NOTHING if elsewhere and isinstance(error, StepError) else error.exit_code)
