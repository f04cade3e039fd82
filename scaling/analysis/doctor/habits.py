"""Checks of the user's model and loop, from the operators of one counted step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from scaling.analysis.decompose.roofline import best_of
from scaling.analysis.doctor.differences import ranks_text
from scaling.analysis.results import RooflineResult
from scaling.analysis.results.doctor import ERROR, WARNING, Finding, Problem
from scaling.records.checkup import CONVOLUTION, MATMUL, RankCheck, Sighting, StepTimes
from scaling.settings.topology import CPU
from scaling.units import significant

BATCH_GAIN = 1.15
"""Larger gains in samples a second at twice the batch are reported."""
SLOW_PRODUCT = 0.75
"""Matrix products below this share of the convolutions' rate are reported: both are the same multiply-adds."""

_SIGHTINGS = {
    "float64": (
        "float64 in the step",
        "convert inputs and parameters with .float(): float64 runs at a fraction of the float32 rate",
    ),
    "host_sync": (
        "a value is read back to the host in the step (.item(), float(), bool() or a branch on a tensor)",
        "keep it on the device and read it every hundred steps: each read waits for all queued work",
    ),
    "print": ("printing in the step", "print every hundred steps, and on rank 0 only"),
    "to_host": (
        "a tensor is copied to the host in the step (.cpu(), .numpy(), .tolist())",
        "keep it on the device: the copy waits for all queued work",
    ),
    "pageable_copy": (
        "a tensor is copied to the device from pageable memory in the step",
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True), before the forward",
    ),
    "blocking_copy": ("a copy to the device blocks in the step", ".to(device, non_blocking=True)"),
    "mixed_devices": (
        "an operator takes tensors of several devices",
        "move inputs and buffers to the model's device; register constants with register_buffer",
    ),
}
_OTHER_DEVICE = ("same device", "expected device", "different device", "Expected all tensors")


def problems(check: RankCheck, roofline: RooflineResult | None, device: str) -> Iterator[Problem]:
    """All problems of one rank."""
    for what, remedy, severity in (
        *_failure(check),
        *_sightings(check),
        *_sizes(check, roofline),
        *_batch(check),
        *_cudnn(check, device),
    ):
        yield Problem(what=what, rank=check.rank, remedy=remedy, severity=severity, host=check.host)


def _failure(check: RankCheck) -> Iterator[Finding]:
    if check.model_error is None:
        return
    if any(part in check.model_error for part in _OTHER_DEVICE):
        yield Finding(
            f"inputs and parameters are on different devices: {check.model_error}",
            "move the inputs to the model's device, and register constants with register_buffer",
            ERROR,
        )
    elif "out of memory" in check.model_error.lower():
        yield Finding(f"a step does not fit: {check.model_error}", "use a smaller batch_per_rank", ERROR)
    else:
        yield Finding(f"a step fails: {check.model_error}", "run the model by hand on this device", ERROR)


def _sightings(check: RankCheck) -> Iterator[Finding]:
    by_kind: dict[str, list[Sighting]] = {}
    for sighting in check.work.sightings if check.work else ():
        by_kind.setdefault(sighting.what, []).append(sighting)
    for kind, sightings in by_kind.items():
        what, remedy = _SIGHTINGS[kind]
        places = list(dict.fromkeys(s.where for s in sightings if s.where))
        layers = list(dict.fromkeys(s.layer for s in sightings if s.layer))
        where = f" at {', '.join(places[:3])}" if places else ""
        where += f" in {', '.join(layers[:3])}" if layers else ""
        yield Finding(f"{what}: {sum(s.count for s in sightings)} times{where}", remedy)


def _sizes(check: RankCheck, roofline: RooflineResult | None) -> Iterator[Finding]:
    if roofline is None or check.work is None or roofline.bound != "launch":
        return
    least, step = roofline.least_ms["launch"].value, roofline.step_ms.value
    yield Finding(
        f"tiny kernels: launching {roofline.operators} operators takes at least {significant(least)} of the "
        f"{significant(step)} ms",
        "torch.compile, CUDA graphs, fused optimizers (fused=True) or a larger batch: fewer, larger operators",
    )


def _batch(check: RankCheck) -> Iterator[Finding]:
    gain = batch_gain(check.times)
    if gain is not None and gain > BATCH_GAIN and check.work is not None:
        yield Finding(
            f"batch too small: {gain:.2f} times the samples a second at batch {2 * check.work.batch}",
            f"batch_per_rank={2 * check.work.batch}, where the optimisation allows it",
        )


def batch_gain(times: StepTimes | None) -> float | None:
    """Samples a second at twice the batch over those at the batch: the lesser of what quickest and middle steps say."""
    if times is None or not times.step_ns or not times.double_batch_step_ns:
        return None
    single, doubled = times.step_ns, times.double_batch_step_ns
    return 2 * min(min(single) / min(doubled), median(single) / median(doubled))


def slow_products(checks: Sequence[RankCheck]) -> Iterator[Problem]:
    """Products and convolutions often come from two libraries, and one of them may not know the processor."""
    shares: dict[int, float] = {}
    for check in checks:
        format_ = check.work.precision if check.work else ""
        product, convolution = (best_of(check.ceilings, kind + format_) for kind in (MATMUL, CONVOLUTION))
        if product and convolution and product < SLOW_PRODUCT * convolution:
            shares[check.rank] = product / convolution
    if not shares:
        return
    library = next((c.facts["blas"] for c in checks if c.facts.get("blas")), None)
    where = "" if len(shares) == len(checks) else f" on {ranks_text(list(shares))}"
    yield Problem(
        what=f"matrix products reach {min(shares.values()):.0%} of the convolutions' rate{where}: "
        f"the BLAS{f' ({library})' if library else ''} is slow on this processor",
        rank=None,
        remedy="try a build of torch with another BLAS, or 1x1 convolutions in place of large Linear layers",
        severity=WARNING,
    )


def _cudnn(check: RankCheck, device: str) -> Iterator[Finding]:
    if device == CPU or check.work is None or not check.work.same_shapes:
        return
    if check.work.convolves and check.facts.get("flags.cudnn_benchmark") is False:
        what = "cudnn.benchmark is off, and the shapes are fixed"
        yield Finding(what, "torch.backends.cudnn.benchmark = True")
