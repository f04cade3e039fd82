"""Run the same seeded steps in every number format, each twice, and compare them with float64.

All ranks build the model with the same seed and take the same batches, so equal machines give equal bits. Parameters
stay in fp32 and the forward runs under autocast, as in training. Only digests and some elements of each tensor are
kept, on the host, so the device holds one run of the model at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from scaling.records.checkup import PrecisionRecord
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.accelerator.precision import Precision
from scaling.worker.checks.compared import Run, Step, Tensors, against, layers, parted
from scaling.worker.checks.fingerprint import COMPARED, Kept, feed, fresh, keep, spread
from scaling.worker.data.workload import Workload

STEPS = 4
TIMED = 3
BATCH_MAX = 8
"""Samples of a parity step: enough for every layer, few enough for float64."""
SCALES = (65536.0, 4096.0, 256.0, 16.0, 1.0)
REFERENCE = "fp64"


class Parity:
    """Runs the steps in all number formats of one rank's device."""

    def __init__(
        self,
        build: Callable[[], Workload],
        device: Accelerator,
        *,
        seed: int,
        batch: int,
        say: Callable[[str], None] = lambda _what: None,
    ) -> None:
        """`build` makes a new model; torch flags that it sets hold for its run. `say` reports the next step."""
        self._build, self._device, self._seed, self._say = build, device, seed, say
        self._batch = min(batch, BATCH_MAX)
        self._reference: Run | None = None
        self.left_out: dict[str, str] = {}
        """Formats whose steps ran out of memory, with the error's message."""

    def record(self, precisions: tuple[str, ...]) -> Iterator[PrecisionRecord]:
        """The reference first, then each of `precisions`. Without the reference, records have no errors."""
        for name in (REFERENCE, *(p for p in precisions if p != REFERENCE)):
            found = self._fitting(name)
            if found is None:
                self._device.release_memory()
            else:
                yield found

    def _fitting(self, name: str) -> PrecisionRecord | None:
        """None where memory ran out. The exception is dropped here, since its frames keep alive what was allocated."""
        try:
            return self._precision(name)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error).strip().split("\n")[0][:300]
            self.left_out[name] = f"{type(error).__name__}: {said}"
        return None

    def _precision(self, name: str) -> PrecisionRecord:
        run = self._run(name, 1)
        again = self._run(name, 2)
        if name == REFERENCE:
            self._reference = run
        known = self._reference
        return PrecisionRecord(
            precision=name,
            scale=run.scale,
            layers=layers(run.outputs, known.outputs if known else {}),
            gradients=layers(run.gradients, known.gradients if known else {}),
            steps=tuple(against(step, known.steps[k] if known else None) for k, step in enumerate(run.steps)),
            repeat_parted=parted(run, again),
            step_ns=tuple(run.step_ns),
            peak_bytes=run.peak_bytes,
        )

    def _run(self, name: str, number: int) -> Run:
        torch.manual_seed(self._seed)
        precision = Precision("fp32" if name == REFERENCE else name, self._device.type)
        workload = self._build()
        module = workload.module.to(self._device.torch_device)
        if name == REFERENCE:
            module = module.double()
        generator = torch.Generator().manual_seed(self._seed)
        batches = [self._load(workload.make_batch(self._batch, generator), name) for _ in range(STEPS)]
        scale = self._scale(workload, precision, batches[0], name) if name == "fp16" else 1.0
        optimizer = workload.optimizer(module.parameters())
        outputs: dict[str, Kept] = {}
        gradients: dict[str, Kept] = {}
        steps: list[Step] = []
        self._device.reset_peak()
        for index, batch in enumerate(batches):
            self._say(f"{name}, run {number}, step {index + 1}")
            hooks = _catch(module, outputs) if index == 0 else []
            loss = self._backward(workload, precision, batch, scale or 1.0)
            for hook in hooks:
                hook.remove()
            found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            if index == 0:
                gradients = {n: keep(g) for n, g in found.items()}
            digest, sums = fresh(), fresh()
            feed([loss], digest, sums)
            feed(found.values(), digest)
            some = _some(found)
            if all(bool(torch.isfinite(g).all()) for g in found.values()):
                optimizer.step()  # skip a step that overflowed, as a grad scaler does
            del found
            optimizer.zero_grad(set_to_none=True)
            weights = dict(module.named_parameters())
            feed(weights.values(), digest, sums)
            steps.append(
                Step(
                    loss=float(loss),
                    gradients=some,
                    weights=_some(weights),
                    digest=digest.hexdigest(),
                    sums=sums.hexdigest(),
                )
            )
        peak = None if self._device.type == "cpu" else self._device.peak_bytes()
        self._say(f"{name}, run {number}, timed")
        return Run(
            outputs=outputs,
            gradients=gradients,
            steps=steps,
            scale=scale,
            step_ns=self._time(workload, precision, optimizer, batches, scale or 1.0),
            peak_bytes=peak,
        )

    def _load(self, batch: Any, name: str) -> Any:
        loaded = self._device.load(self._device.stage(batch))
        if name != REFERENCE:
            return loaded
        return tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, loaded)

    @staticmethod
    def _backward(workload: Workload, precision: Precision, batch: Any, scale: float) -> torch.Tensor:
        inputs, targets = batch
        with precision.autocast():
            loss = workload.loss(workload.module(inputs), targets)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        if scale != 1:
            for parameter in workload.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
        return loss.detach()

    def _scale(self, workload: Workload, precision: Precision, batch: Any, name: str) -> float:
        """The largest loss scale with finite gradients, where a grad scaler would settle; 0 where there is none.

        Random generators are restored, the device's too, so that the first step is the same in every format.
        """
        state = copy.deepcopy(workload.module.state_dict())
        random = self._device.random_state()
        found = 0.0
        for scale in SCALES:
            self._say(f"{name}, loss scale {scale:g}")
            self._device.set_random_state(random)
            self._backward(workload, precision, batch, scale)
            grads = [p.grad for p in workload.module.parameters() if p.grad is not None]
            finite = all(bool(torch.isfinite(g).all()) for g in grads)
            workload.module.zero_grad(set_to_none=True)
            workload.module.load_state_dict(state)
            if finite:
                found = scale
                break
        self._device.set_random_state(random)
        return found

    def _time(
        self, workload: Workload, precision: Precision, optimizer: Any, batches: list[Any], scale: float
    ) -> list[int]:
        """Durations of whole steps, ns, synchronised with the device at both ends."""
        found = []
        for index in range(TIMED):
            self._device.synchronize()
            begin = now_ns()
            self._backward(workload, precision, batches[index % len(batches)], scale)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self._device.synchronize()
            found.append(now_ns() - begin)
        return found


def _some(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: spread(tensor, COMPARED) for name, tensor in tensors.items()}


def _catch(module: torch.nn.Module, into: dict[str, Kept]) -> list[Any]:
    """Keep the output of every leaf module, and only the first if it is called again."""

    def catching(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            for index, tensor in enumerate(tensors):
                key = name or type(module).__name__
                key = f"{key}[{index}]" if len(tensors) > 1 else key
                if key not in into:
                    into[key] = keep(tensor)

        return hook

    leaves = [(n, m) for n, m in module.named_modules() if not any(True for _ in m.children())]
    return [m.register_forward_hook(catching(n)) for n, m in leaves]
