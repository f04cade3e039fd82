"""Save and restore all that training steps change: weights, buffers, gradients, optimizers, random generators."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch

from scaling.worker.accelerator.torch_accelerator import random_states, set_random_states


class State:
    """A copy of the training's state on its devices, as large as weights, gradients and optimizer state together."""

    def __init__(
        self, module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any]
    ) -> None:
        """`others` have `state_dict` and `load_state_dict`, like a grad scaler or a schedule."""
        self._tensors = [(t, t.detach().clone()) for t in (*module.parameters(), *module.buffers())]
        self._gradients = [
            (p, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in module.parameters()
        ]
        self._optimizers = [_Optimizer(one) for one in optimizers]
        self._stateful = [(x, copy.deepcopy(x.state_dict())) for x in others]
        self._random = _random_state()

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything, bit by bit. This can be done again, for instance where it failed half way."""
        for tensor, saved in self._tensors:
            tensor.copy_(saved)
        for parameter, gradient, values in self._gradients:
            parameter.grad = gradient  # the same tensor object: DDP may keep its gradients in it
            if gradient is not None and values is not None:
                gradient.copy_(values)
        for optimizer in self._optimizers:
            optimizer.restore()
        for thing, document in self._stateful:
            thing.load_state_dict(document)
        _set_random_state(*self._random)


class _Optimizer:
    """An optimizer's state and settings, restored into the same tensors.

    `load_state_dict` would cast tensors to the parameters' type and device, such as moments in fp32 or counts on the
    host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._its = optimizer
        # Some optimizers keep more in it than a dictionary per parameter, for instance a count.
        self._state = [
            (key, state, _Values(state if isinstance(state, dict) else {"": state}))
            for key, state in optimizer.state.items()
        ]
        self._groups = [
            (g["params"], _Values({k: v for k, v in g.items() if k != "params"}))
            for g in optimizer.param_groups
        ]

    def restore(self) -> None:
        """Restore the state; newer entries are removed."""
        self._its.state.clear()
        for key, state, values in self._state:
            if isinstance(state, dict):
                state.clear()
                self._its.state[key] = values.restored(state)
            else:
                self._its.state[key] = values.restored({})[""]
        for group, (parameters, values) in zip(self._its.param_groups, self._groups, strict=True):
            group.clear()
            values.restored(group)["params"] = parameters


class _Values:
    """Copies of named values. Tensors are kept beside their copies, to be restored in place."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._tensors = {k: (v, v.detach().clone()) for k, v in values.items() if isinstance(v, torch.Tensor)}
        self._others = copy.deepcopy({k: v for k, v in values.items() if k not in self._tensors})

    def restored(self, into: dict[str, Any]) -> dict[str, Any]:
        """`into` with the saved values; tensors are the same objects as before."""
        for name, (tensor, saved) in self._tensors.items():
            into[name] = tensor.copy_(saved)
        into.update(copy.deepcopy(self._others))
        return into


def _random_state() -> tuple[Any, Any, Any, Any]:
    numpy = sys.modules.get("numpy")  # a loop that does not use numpy has nothing to restore
    return (
        torch.get_rng_state(),
        random_states(),
        random.getstate(),
        numpy.random.get_state() if numpy else None,
    )


def _set_random_state(host: Any, devices: Any, python: Any, numpy_state: Any) -> None:
    torch.set_rng_state(host)
    set_random_states(devices)
    random.setstate(python)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
