"""Before a launch: try and time a model's step in a process of its own, and say how long the run takes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scaling import resources
from scaling.errors import InputError
from scaling.launchers.launcher import die_with_parent, end
from scaling.launchers.torchrun import build_device, reaped
from scaling.plain import tell
from scaling.records import files
from scaling.settings.budget import allowance_s
from scaling.settings.estimate import Machine, Timing, fit, promise, refusal, synthetic_timing
from scaling.settings.plan import Plan
from scaling.settings.run import Spec
from scaling.settings.topology import SIMULATED

TRY_S = 120
"""Time limit for a custom model's factory and first step, and for the steps that are timed."""
SHOWS_NOTHING = 75
"""Exit status of a tryout that failed on another kind of device than the run's (scaling.worker.checks.tryout)."""
COMPILED = 5
"""The limit is this many times longer for a compiled model."""
LOOKS, LOOK_S = 10, 0.01
"""How often at least, and how far apart, the number of running processes is read."""
TIMING = "timing "
"""How a line with a timing begins."""


def promised(plan: Plan) -> Plan:
    """The plan with what fits into its budget, and with how long the run takes.

    Without a timed step (none was done in time, or the run's devices are elsewhere) the plan stays as it is, and the
    launch fits itself. InputError where not even the least fits; it names a budget that is enough.
    """
    if plan.spec.launcher == "slurm" or plan.variant is not None:
        new = plan if plan.variant is None else dataclasses.replace(plan, spec=plan.variant)
        if needs_trying(new.spec):
            try_model(new)
        return plan
    machine, begin = this_machine(), time.monotonic()
    with _running() as counts:
        timing = time_model(plan, machine)
    if len(counts) > LOOKS:  # the seconds of the tryout tell more of the minutes to come than a moment does
        others = sum(counts) / len(counts) - max(1, plan.spec.threads)
        machine = dataclasses.replace(machine, beside=max(0.0, others))
    if timing is None:
        return plan
    fitted = fit(plan, timing, machine)
    if not fitted.fits:
        raise InputError(refusal(plan, timing, fitted.enough_s))
    estimate = promise(plan, timing, machine, fitted, time.monotonic() - begin)
    return dataclasses.replace(plan, content=fitted.content, promise=estimate)


def needs_trying(spec: Spec) -> bool:
    """Whether the model or data is the user's own, or an option is set that some models or torches do not support."""
    ours = spec.model.target.startswith("scaling.worker.models.") and spec.data.target is None
    options = spec.compile, spec.channels_last, spec.checkpointing, spec.fused_optimizer
    return not ours or any(options) or spec.fsdp.separate_reduce_scatter_group


def try_model(plan: Plan, *, flops: bool = False) -> None:
    """Try a step of two samples, and count its FLOPs if asked; InputError with the process' last line when that fails.

    What takes too long, or fails where the run's devices are not, is no failure: one line on standard error says so.
    """
    _tried(plan, TRY_S, flops=flops, timed=False, step=True)


def time_model(plan: Plan, machine: Machine) -> Timing | None:
    """Time steps of the model, after one of two samples where the model needs trying.

    None where no step was done in time, or where one did not fit into memory. InputError when a step fails.
    """
    spec = plan.spec
    if spec.model.synthetic and not needs_trying(spec):
        # Its settings tell, but of a simulated device's steps they do not say what these take of this machine.
        return synthetic_timing(spec, machine) if spec.topology.device != SIMULATED else None
    limit_s = max(TRY_S, allowance_s(spec.measure) / 4)
    lines = _tried(plan, limit_s, flops=False, timed=True, step=needs_trying(spec)).splitlines()
    timings = [line.removeprefix(TIMING) for line in lines if line.startswith(TIMING)]
    return files.decode(Timing, json.loads(timings[-1])) if timings else None


def this_machine() -> Machine:
    """The cores of this process, and how many other processes run on the machine just now."""
    with _running() as counts:
        time.sleep(LOOKS * LOOK_S)
    return Machine(cores=len(os.sched_getaffinity(0)), beside=sum(counts) / max(1, len(counts)))


@contextlib.contextmanager
def _running() -> Iterator[list[int]]:
    """How many processes run on the machine beside this one, read again and again until the context ends."""
    counts, over = list[int](), threading.Event()

    def read() -> None:
        while not over.wait(LOOK_S):
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = Path("/proc/loadavg").read_text(encoding="ascii").split()
                counts.append(int(words[3].split("/")[0]) - 1)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield counts
    finally:
        over.set()
        reader.join()


def _tried(plan: Plan, limit_s: float, *, flops: bool, timed: bool, step: bool) -> str:
    """What the process printed, also if it was ended at its limit while it timed steps."""
    spec, model = plan.spec, plan.spec.model
    limit_s *= COMPILED if spec.compile else 1
    build_device(plan)
    began_s = time.monotonic()  # the machine's clock: the process reads the same one
    asked = {"batch": plan.trials[0].batch, "flops": flops, "time": timed, "step": step, "began_s": began_s}
    try:
        # torch makes its cache's folder when it is imported, and leaves it behind.
        with tempfile.TemporaryDirectory(prefix="scaling-") as scratch:
            cache = {} if spec.compiles else {"TORCHINDUCTOR_CACHE_DIR": scratch}
            with subprocess.Popen(
                reaped((sys.executable, "-m", "scaling.worker.checks.tryout")),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**cache, **os.environ, "PYTHONPATH": resources.import_path()},
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # safe beside other threads: it only calls prctl
            ) as process:
                try:
                    request = json.dumps({"spec": files.encode(spec), **asked})
                    out, err = process.communicate(request, timeout=limit_s)
                finally:
                    end(process)
    except subprocess.TimeoutExpired as error:
        if step or flops:
            tell(
                f"model._target_={model.target}, data={spec.data.name}: a step of two samples was not done within "
                f"{limit_s:.0f} s; the run goes on and shows whether it works"
            )
        return (error.stdout or b"").decode(errors="replace")
    if process.returncode < 0 and timed:  # out of memory, at a batch that the launch may not reach either
        return out
    if process.returncode:
        lines = [line for line in err.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"model._target_={model.target}: failed with {process.returncode}"
        if process.returncode == SHOWS_NOTHING:
            tell(f"{reason} (tried on a CPU; the run goes on, since its devices are elsewhere)")
            return out
        pixels = spec.data.args.get("image"), model.args.get("image")
        if None not in pixels and pixels[0] != pixels[1]:
            reason += f" (data.image={pixels[0]} beside model.image={pixels[1]})"
        raise InputError(reason)
    return out
