"""All that training steps change, taken and put back: weights, buffers, gradients, optimizers, random numbers."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


class State:
    """A copy of the training's state on its own devices: as large again as weights, gradients and optimizer state."""

    def __init__(
        self, module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any]
    ) -> None:
        """`others` have `state_dict` and `load_state_dict`: a grad scaler, a schedule."""
        self._tensors = [(t, t.detach().clone()) for t in (*module.parameters(), *module.buffers())]
        self._gradients = [
            (p, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in module.parameters()
        ]
        self._stateful = [(x, copy.deepcopy(x.state_dict())) for x in (*optimizers, *others)]
        self._random = _random_state()

    @torch.no_grad()
    def restore(self) -> None:
        """As it was, to the bit."""
        for tensor, saved in self._tensors:
            tensor.copy_(saved)
        for parameter, gradient, values in self._gradients:
            parameter.grad = gradient  # the very tensor: DDP may keep its gradients in it
            if gradient is not None and values is not None:
                gradient.copy_(values)
        for thing, document in self._stateful:
            thing.load_state_dict(document)
        _set_random_state(*self._random)


def _random_state() -> tuple[Any, Any, Any, Any]:
    numpy = sys.modules.get("numpy")  # a loop that does not use it has nothing to restore there
    return (
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        random.getstate(),
        numpy.random.get_state() if numpy else None,
    )


def _set_random_state(host: Any, devices: Any, python: Any, numpy_state: Any) -> None:
    torch.set_rng_state(host)
    if devices:
        torch.cuda.set_rng_state_all(devices)
    random.setstate(python)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
