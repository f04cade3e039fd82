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
        self._optimizers = [_Optimizer(one) for one in optimizers]
        self._stateful = [(x, copy.deepcopy(x.state_dict())) for x in others]
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
        for optimizer in self._optimizers:
            optimizer.restore()
        for thing, document in self._stateful:
            thing.load_state_dict(document)
        _set_random_state(*self._random)


class _Optimizer:
    """An optimizer's state and settings, put back into the very tensors.

    `load_state_dict` would cast them to the parameters' type and device: moments kept in fp32, counts on the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._its = optimizer
        # Some keep more than a dictionary a parameter in it, a count of their own for instance.
        self._state = [
            (key, state, _Values(state if isinstance(state, dict) else {"": state}))
            for key, state in optimizer.state.items()
        ]
        self._groups = [
            _Values({k: v for k, v in g.items() if k != "params"}) for g in optimizer.param_groups
        ]

    def restore(self) -> None:
        """State that came since is gone."""
        self._its.state.clear()
        for key, state, values in self._state:
            if isinstance(state, dict):
                state.clear()
                self._its.state[key] = values.restored(state)
            else:
                self._its.state[key] = values.restored({})[""]
        for group, values in zip(self._its.param_groups, self._groups, strict=True):
            parameters = group["params"]
            group.clear()
            values.restored(group)["params"] = parameters


class _Values:
    """Named values: tensors with a copy each, everything else as a copy."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._tensors = {k: (v, v.detach().clone()) for k, v in values.items() if isinstance(v, torch.Tensor)}
        self._others = copy.deepcopy({k: v for k, v in values.items() if k not in self._tensors})

    def restored(self, into: dict[str, Any]) -> dict[str, Any]:
        """`into` with the values as they were; the tensors are the same objects as then."""
        for name, (tensor, saved) in self._tensors.items():
            into[name] = tensor.copy_(saved)
        into.update(copy.deepcopy(self._others))
        return into


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
