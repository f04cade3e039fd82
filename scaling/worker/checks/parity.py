"""The same seeded steps in every number format against float64, each run twice.

All ranks build the same model with the same seed and take the same batches, so equal machines
give equal bits. Parameters stay in fp32 and the forward runs under autocast, as in training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from scaling.checkup import Layer, ParityStep, PrecisionRecord
from scaling.worker.checks.fingerprint import COMPARED, digest, distance, layer, spread
from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.precision import Precision
from scaling.worker.workload import Workload

STEPS = 4
TIMED = 3
BATCH_MAX = 8
"""Samples of a parity step: enough for every layer to work, few enough for float64."""
SCALES = (65536.0, 4096.0, 256.0, 16.0, 1.0)
REFERENCE = "fp64"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one run of the steps left."""

    outputs: dict[str, torch.Tensor]
    """Of every leaf module in the first forward, in order; as they were."""
    gradients: list[dict[str, torch.Tensor]]
    """By step and parameter, unscaled."""
    weights: list[dict[str, torch.Tensor]]
    losses: list[torch.Tensor]
    scale: float
    step_ns: list[int]
    peak_bytes: int | None


class Parity:
    """All number formats of one rank's device."""

    def __init__(self, build: Callable[[], Workload], device: Device, *, seed: int, batch: int) -> None:
        """`build` makes the model anew; whatever it sets in torch's flags holds for its run."""
        self._build, self._device, self._seed = build, device, seed
        self._batch = min(batch, BATCH_MAX)
        self._reference: _Run | None = None
        self._spread: dict[str, torch.Tensor] = {}

    def record(self, precisions: tuple[str, ...]) -> Iterator[PrecisionRecord]:
        """The reference first, then each of `precisions`."""
        for name in (REFERENCE, *(p for p in precisions if p != REFERENCE)):
            yield self._precision(name)

    def _precision(self, name: str) -> PrecisionRecord:
        run = self._run(name)
        again = self._run(name)
        if name == REFERENCE:
            self._reference = run
        assert self._reference is not None
        return PrecisionRecord(
            precision=name,
            scale=run.scale,
            layers=_layers(run.outputs, self._reference.outputs),
            gradients=_layers(run.gradients[0], self._reference.gradients[0]),
            steps=tuple(_step(run, self._reference, k) for k in range(STEPS)),
            repeat_parted=_parted(run, again),
            step_ns=tuple(run.step_ns),
            peak_bytes=run.peak_bytes,
        )

    def _run(self, name: str) -> _Run:
        torch.manual_seed(self._seed)
        precision = Precision("fp32" if name == REFERENCE else name, self._device.type)
        workload = self._build()
        module = workload.module.to(self._device.torch_device)
        if name == REFERENCE:
            module = module.double()
        generator = torch.Generator().manual_seed(self._seed)
        batches = [self._load(workload.make_batch(self._batch, generator), name) for _ in range(STEPS)]
        scale = self._scale(workload, precision, batches[0]) if name == "fp16" else 1.0
        optimizer = workload.optimizer(module.parameters())
        outputs: dict[str, torch.Tensor] = {}
        gradients, weights, losses = [], [], []
        self._device.reset_peak()
        for index, batch in enumerate(batches):
            hooks = _catch(module, outputs) if index == 0 else []
            loss = self._backward(workload, precision, batch, scale or 1.0)
            for hook in hooks:
                hook.remove()
            gradients.append({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
            if all(bool(torch.isfinite(g).all()) for g in gradients[-1].values()):
                optimizer.step()  # as a grad scaler does: a step that overflowed is left out
            optimizer.zero_grad(set_to_none=True)
            weights.append({n: p.detach().clone() for n, p in module.named_parameters()})
            losses.append(loss)
        peak = None if self._device.type == "cpu" else self._device.peak_bytes()
        return _Run(
            outputs=outputs,
            gradients=gradients,
            weights=weights,
            losses=losses,
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

    def _scale(self, workload: Workload, precision: Precision, batch: Any) -> float:
        """The largest loss scale with finite gradients, where a grad scaler would come to rest; 0 where none is."""
        state = copy.deepcopy(workload.module.state_dict())
        random = torch.get_rng_state()
        found = 0.0
        for scale in SCALES:
            torch.set_rng_state(random)
            self._backward(workload, precision, batch, scale)
            grads = [p.grad for p in workload.module.parameters() if p.grad is not None]
            finite = all(bool(torch.isfinite(g).all()) for g in grads)
            workload.module.zero_grad(set_to_none=True)
            workload.module.load_state_dict(state)
            if finite:
                found = scale
                break
        torch.set_rng_state(random)
        return found

    def _time(
        self, workload: Workload, precision: Precision, optimizer: Any, batches: list[Any], scale: float
    ) -> list[int]:
        """Whole steps, the device waited for at both ends of each."""
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


def _catch(module: torch.nn.Module, into: dict[str, torch.Tensor]) -> list[Any]:
    """Keep the output of every leaf module; one that is called again keeps its first."""

    def keep(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            for index, tensor in enumerate(tensors):
                key = name or type(module).__name__
                into.setdefault(f"{key}[{index}]" if len(tensors) > 1 else key, tensor.detach().clone())

        return hook

    leaves = [(n, m) for n, m in module.named_modules() if not any(True for _ in m.children())]
    return [m.register_forward_hook(keep(n)) for n, m in leaves]


def _layers(found: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> tuple[Layer, ...]:
    known = {name: spread(t, COMPARED) for name, t in reference.items()}
    same = {n: known[n] if n in known and t.shape == reference[n].shape else None for n, t in found.items()}
    return tuple(layer(name, tensor, same[name]) for name, tensor in found.items())


def _step(run: _Run, reference: _Run, index: int) -> ParityStep:
    loss, expected = float(run.losses[index]), float(reference.losses[index])
    gradients, known = run.gradients[index], reference.gradients[index]
    errors = {
        n: distance(spread(g, COMPARED), spread(known[n], COMPARED))
        for n, g in gradients.items()
        if n in known
    }
    worst = max(errors, key=lambda n: math.inf if errors[n] is None else errors[n] or 0.0, default="")
    finite = math.isfinite(loss)
    return ParityStep(
        loss=loss if finite else None,
        loss_error=abs(loss - expected) / (abs(expected) or 1.0)
        if finite and math.isfinite(expected)
        else None,
        gradient_error=_together(gradients, known),
        weight_error=_together(run.weights[index], reference.weights[index]),
        worst_layer=worst,
        digest=digest([run.losses[index], *gradients.values(), *run.weights[index].values()]),
    )


def _together(found: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float | None:
    """The distance of all tensors as one vector."""
    names = [n for n in found if n in reference]
    if not names:
        return None
    whole = [torch.cat([spread(part[n], COMPARED) for n in names]) for part in (found, reference)]
    return distance(*whole)


def _parted(run: _Run, again: _Run) -> str:
    """The first layer whose output or gradient, or the first step whose sums, a repetition did not give again."""
    for name, tensor in run.outputs.items():
        if digest([tensor]) != digest([again.outputs[name]]):
            return name
    for name, tensor in reversed(run.gradients[0].items()):
        if digest([tensor]) != digest([again.gradients[0][name]]):
            return f"gradient of {name}"
    for index in range(STEPS):
        if digest([run.losses[index], *run.weights[index].values()]) != digest(
            [again.losses[index], *again.weights[index].values()]
        ):
            return f"step {index + 1}"
    return ""
