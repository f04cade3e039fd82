"""Run the same seeded steps in every number format, each twice, and compare them with float64.

All ranks build the model with the same seed and take the same batches, so equal machines give equal bits. Parameters
stay in fp32 and the forward runs under autocast, as in training. Only digests and some elements of each tensor are
kept, on the host, so the device holds one run of the model at a time: the digest shows whether two tensors are equal,
the elements how much they differ.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scaling.records.checkup import Layer, ParityStep, PrecisionRecord
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.data.workload import Workload
from scaling.worker.parallel.torch_private import tensors_in, tree_map_only

DIGEST_BYTES, SAMPLES = 12, 64
COMPARED = 2**14
"""Elements of a tensor that are compared with the reference's."""
CHUNK = 2**22
"""Elements that are summed at a time on a GPU."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MIX = (-7046029254386353131, -4658895280553007687)
"""Odd multipliers of splitmix64 (https://prng.di.unimi.it/splitmix64.c), as signed numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of one tensor, on the CPU, so that the tensor can be released."""

    shape: tuple[int, ...]
    digest: str
    """That of all bytes."""
    some: torch.Tensor
    """Elements from `spread(.., COMPARED)`."""
    samples: torch.Tensor
    """Elements from `spread(.., SAMPLES)`."""
    not_finite: int


def keep(tensor: torch.Tensor) -> Kept:
    """Keep what `layers` and comparisons need."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    feed(hasher, [tensor])
    return Kept(
        shape=tuple(tensor.shape),
        digest=hasher.hexdigest(),
        some=spread(tensor, COMPARED),
        samples=spread(tensor, SAMPLES),
        not_finite=int((~torch.isfinite(tensor.detach())).sum()),
    )


def feed(hasher: Any, tensors: Iterable[torch.Tensor]) -> None:
    """Add all bytes, in order, to a digest; of a GPU's tensor its sums, since to copy and hash takes minutes."""
    for tensor in tensors:
        if tensor.is_cuda:
            hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}{sums(tensor)}".encode())
            continue
        host = tensor.detach().to("cpu").contiguous()
        size = host.numel() * host.element_size()
        if size:
            hasher.update((ctypes.c_char * size).from_address(host.data_ptr()))


def sums(tensor: torch.Tensor) -> list[int]:
    """One number for each CHUNK elements, computed where the tensor is: the sum of bits times weights, modulo 2^64.

    The weights are odd, so a change of one element always shows. They are mixed, so several cancel only by chance. The
    order of additions does not matter.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        return sums(torch.view_as_real(flat))
    bits = flat.view(_INTEGERS[flat.element_size()])
    weights = _weights(min(CHUNK, bits.numel()), tensor.device)
    chunk_sums = [
        (part.to(torch.int64) * weights[: part.numel()]).sum()
        for part in torch.split(bits, CHUNK)
        if part.numel()
    ]
    return torch.stack(chunk_sums).tolist() if chunk_sums else []


def _weights(count: int, device: torch.device) -> torch.Tensor:
    mixed = torch.arange(1, count + 1, device=device, dtype=torch.int64) * _MIX[0]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[1]
    return (mixed ^ (mixed >> 32)) | 1


def spread(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """A copy of at most `count` evenly spaced elements, float64, on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = max(1, -(-flat.numel() // count))
    return flat[::step].to("cpu", torch.float64, copy=True)


def distance(x: torch.Tensor, reference: torch.Tensor) -> float | None:
    """|x - reference| / |reference|; None if it is not finite."""
    norm = float(torch.linalg.vector_norm(reference))
    apart = float(torch.linalg.vector_norm(x - reference))
    relative = apart / norm if norm else apart
    return relative if math.isfinite(relative) else None


Tensors = dict[str, torch.Tensor]
"""Elements from `spread(.., COMPARED)` of each tensor, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What was kept of one step."""

    loss: float
    gradients: Tensors
    """Unscaled."""
    weights: Tensors
    digest: str
    """Digest of the loss, all gradients and all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was kept of one run of the steps."""

    outputs: dict[str, Kept]
    """Outputs of every leaf module in the first forward, in order."""
    gradients: dict[str, Kept]
    """Gradients of the first step by parameter, unscaled."""
    steps: list[Step]
    scale: float
    step_ns: list[int]
    peak_bytes: int | None


def layers(tensors: Mapping[str, Kept], reference: Mapping[str, Kept]) -> tuple[Layer, ...]:
    """Fingerprints of tensors, compared with the float64 run's of the same name and shape where there is one."""

    def layer(name: str, kept: Kept) -> Layer:
        other = reference.get(name)
        same = other if other is not None and other.shape == kept.shape else None
        return Layer(
            name=name,
            digest=kept.digest,
            samples=tuple(x if math.isfinite(x) else None for x in kept.samples.tolist()),
            error=None if same is None else distance(kept.some, same.some),
            not_finite=kept.not_finite,
            flushed=0 if same is None else int(((kept.some == 0) & (same.some != 0)).sum()),
        )

    return tuple(layer(name, kept) for name, kept in tensors.items())


def against(step: Step, reference: Step | None) -> ParityStep:
    """Compare one step with the reference's; errors are None without a reference."""
    expected = reference.loss if reference else math.nan
    expected_gradients = reference.gradients if reference else {}
    errors = {
        n: distance(g, expected_gradients[n]) for n, g in step.gradients.items() if n in expected_gradients
    }
    worst = max(errors, key=lambda n: math.inf if errors[n] is None else errors[n] or 0.0, default="")
    finite = math.isfinite(step.loss)
    comparable = finite and math.isfinite(expected)
    return ParityStep(
        loss=step.loss if finite else None,
        loss_error=abs(step.loss - expected) / (abs(expected) or 1.0) if comparable else None,
        gradient_error=_together(step.gradients, expected_gradients),
        weight_error=_together(step.weights, reference.weights if reference else {}),
        worst_layer=worst,
        digest=step.digest,
    )


def parted(run: Run, again: Run) -> str:
    """The first layer, gradient or step that a repetition did not reproduce; empty if it reproduced all."""
    for name, kept in run.outputs.items():
        if kept.digest != again.outputs[name].digest:
            return name
    for name, kept in reversed(run.gradients.items()):
        if kept.digest != again.gradients[name].digest:
            return f"gradient of {name}"
    for index, (step, other) in enumerate(zip(run.steps, again.steps, strict=True)):
        if step.digest != other.digest:
            return f"step {index + 1}"
    return ""


def _together(tensors: Tensors, reference: Tensors) -> float | None:
    """The distance of all tensors taken as one vector."""
    names = [n for n in tensors if n in reference]
    if not names:
        return None
    whole = [torch.cat([part[n] for n in names]) for part in (tensors, reference)]
    return distance(*whole)


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
            compared = self._compared(name)
            if compared is None:
                self._device.release_memory()
            else:
                yield compared

    def _compared(self, name: str) -> PrecisionRecord | None:
        """None where memory ran out. The exception is dropped here, since its frames keep alive what was allocated."""
        try:
            run, again = self._run(name, 1), self._run(name, 2)
            if name == REFERENCE:
                self._reference = run
            reference = self._reference
            steps = (against(s, reference.steps[k] if reference else None) for k, s in enumerate(run.steps))
            return PrecisionRecord(
                precision=name,
                scale=run.scale,
                layers=layers(run.outputs, reference.outputs if reference else {}),
                gradients=layers(run.gradients, reference.gradients if reference else {}),
                steps=tuple(steps),
                repeat_parted=parted(run, again),
                step_ns=tuple(run.step_ns),
                peak_bytes=run.peak_bytes,
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            first_line = str(error).strip().split("\n")[0][:300]
            self.left_out[name] = f"{type(error).__name__}: {first_line}"
        return None

    def _run(self, name: str, number: int) -> Run:
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
            step_gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            if index == 0:
                gradients = {n: keep(g) for n, g in step_gradients.items()}
            hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
            feed(hasher, [loss, *step_gradients.values()])
            some = _some(step_gradients)
            if all(bool(torch.isfinite(g).all()) for g in step_gradients.values()):
                optimizer.step()  # skip a step that overflowed, as a grad scaler does
            del step_gradients
            optimizer.zero_grad(set_to_none=True)
            weights = dict(module.named_parameters())
            feed(hasher, weights.values())
            steps.append(
                Step(loss=float(loss), gradients=some, weights=_some(weights), digest=hasher.hexdigest())
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

    def _scale(self, workload: Workload, precision: Precision, batch: Any) -> float:
        """The largest loss scale with finite gradients, where a grad scaler would settle; 0 where there is none.

        Random generators are restored, the device's too, so that the first step is the same in every format.
        """
        state = copy.deepcopy(workload.module.state_dict())
        random = self._device.random_state()
        for scale in SCALES:
            self._say(f"fp16, loss scale {scale:g}")
            self._device.set_random_state(random)
            self._backward(workload, precision, batch, scale)
            grads = [p.grad for p in workload.module.parameters() if p.grad is not None]
            finite = all(bool(torch.isfinite(g).all()) for g in grads)
            workload.module.zero_grad(set_to_none=True)
            workload.module.load_state_dict(state)
            if finite:
                break
        else:
            scale = 0.0
        self._device.set_random_state(random)
        return scale

    def _time(
        self, workload: Workload, precision: Precision, optimizer: Any, batches: list[Any], scale: float
    ) -> list[int]:
        """Durations of whole steps, ns, synchronised with the device at both ends."""
        durations_ns = []
        for index in range(TIMED):
            self._device.synchronize()
            begin = now_ns()
            self._backward(workload, precision, batches[index % len(batches)], scale)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self._device.synchronize()
            durations_ns.append(now_ns() - begin)
        return durations_ns


def _some(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: spread(tensor, COMPARED) for name, tensor in tensors.items()}


def _catch(module: torch.nn.Module, into: dict[str, Kept]) -> list[Any]:
    """Keep the output of every leaf module, and only the first if it is called again."""

    def catching(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensors = tensors_in(output)
            for index, tensor in enumerate(tensors):
                key = name or type(module).__name__
                key = f"{key}[{index}]" if len(tensors) > 1 else key
                if key not in into:
                    into[key] = keep(tensor)

        return hook

    leaves = [(n, m) for n, m in module.named_modules() if not any(True for _ in m.children())]
    return [m.register_forward_hook(catching(n)) for n, m in leaves]
