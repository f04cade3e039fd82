"""Cells of LSTM and GRU, which torch fuses on devices and has no CPU kernel for, made of other operators."""

from __future__ import annotations

import torch
from torch import Tensor


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _thnn_fused_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell state, and the four gates after their functions (N x 4 H), which backward needs."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _thnn_fused_lstm_cell_backward_impl(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the gates, of the cell's state, and of a bias."""
    i, f, g, o = workspace.chunk(4, 1)
    bent = cy.tanh()
    hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    cell = hy * o * (1 - bent * bent)
    if grad_cy is not None:
        cell = cell + grad_cy
    parts = (cell * g * i * (1 - i), cell * cx * f * (1 - f), cell * i * (1 - g * g), hy * bent * o * (1 - o))
    gates = torch.cat(parts, 1)
    return gates, cell * f, gates.sum(0) if has_bias else None


def _thnn_fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Hidden state, and what backward needs (N x 5 H)."""
    ir, iz, inew = _biased(input_gates, input_bias).chunk(3, 1)
    hr, hz, hnew = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (inew + r * hnew).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hnew], 1)


def _thnn_fused_gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both sets of gates, of the hidden state, and of both biases."""
    r, z, n, hx, hnew = workspace.chunk(5, 1)
    new = grad_hy * (1 - z) * (1 - n * n)
    reset, update = new * hnew * r * (1 - r), grad_hy * (hx - n) * z * (1 - z)
    into, hidden = torch.cat([reset, update, new], 1), torch.cat([reset, update, new * r], 1)
    biases = (into.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return into, hidden, grad_hy * z, *biases


KERNELS = (
    _thnn_fused_lstm_cell,
    _thnn_fused_lstm_cell_backward_impl,
    _thnn_fused_gru_cell,
    _thnn_fused_gru_cell_backward,
)
