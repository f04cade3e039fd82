"""Kernels of SyncBatchNorm, which torch has for GPUs alone, made of the device's other operators."""

# ruff: noqa: ARG001  (torch's own operators: their names and arguments are its)

from __future__ import annotations

from torch import Tensor


def _all_but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _by_channel(v: Tensor, x: Tensor) -> Tensor:
    return v.view([-1 if d == 1 else 1 for d in range(x.dim())])


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.float()
    return x.mean(_all_but_channels(x)), (x.var(_all_but_channels(x), correction=0) + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation over all ranks: of each rank's, by its number of elements (C each)."""
    total = counts.sum()
    shares = (counts / total).unsqueeze(1)
    mean = (means * shares).sum(0)
    var = ((invstds.pow(-2) - eps + (means - mean).pow(2)) * shares).sum(0)
    if running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(mean * momentum)
        running_var.mul_(1 - momentum).add_(var * (total / (total - 1)) * momentum)
    return mean, (var + eps).rsqrt()


def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    y = (x - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None and bias is not None:
        y = y * _by_channel(weight, x) + _by_channel(bias, x)
    return y.to(x.dtype)


def batch_norm_backward_reduce(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    for_input: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over a rank's elements, by channel: of dy, of dy (x - mean), and the gradients of weight and bias."""
    sum_dy = dy.float().sum(_all_but_channels(x))
    sum_dy_xmu = (dy * (x - _by_channel(mean, x))).float().sum(_all_but_channels(x))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def batch_norm_backward_elemt(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    """The input's gradient; the sums are over all ranks."""
    total = counts.sum()
    scale = invstd if weight is None else invstd * weight
    slope = _by_channel(sum_dy_xmu / total * invstd.pow(2), x)
    dx = (dy - _by_channel(sum_dy / total, x) - (x - _by_channel(mean, x)) * slope) * _by_channel(scale, x)
    return dx.to(x.dtype)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)
