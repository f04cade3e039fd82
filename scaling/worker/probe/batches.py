"""What a loop calls its model with: how many samples, and whether it fetches them between forward and backward."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in containers, such as a tokenizer's batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


_CHANNELS = (1, 3, 4)
"""An image (channels, height, width) has so many channels."""


def samples_of(args: Any, kwargs: Any) -> int:
    """How many samples a model is called with: the first dimension of the first tensor, or a list's items; 0: unknown.

    A list has a sample in each item if its tensors differ in their first dimension, if they are single images, or if
    another list has as many items, with a mapping in each (the targets of torchvision's detection models).
    """
    given = [*args, *kwargs.values()]
    for value in given:
        tensors = [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, list) else []
        if not tensors or len(tensors) != len(value):
            continue
        first = {t.size(0) if t.dim() else 0 for t in tensors}
        images = all(t.dim() == 3 for t in tensors) and first <= set(_CHANNELS)
        beside = [v for v in given if isinstance(v, list) and v is not value and len(v) == len(value)]
        if len(first) > 1 or images or any(all(isinstance(x, Mapping) for x in v) for v in beside):
            return len(value)
        break
    whole = next((t for t in _tensors(given) if t.dim()), None)
    return 0 if whole is None else whole.size(0)


class Fetches:
    """Find out whether a loop fetches its next batch between forward and backward, as nanoGPT does.

    It does if a tensor that a forward is called with was not there when the forward before began, and was when the
    backward before began: as a variable of the function that calls the model.
    """

    def __init__(self) -> None:
        self._place = 0
        self._earlier: list[weakref.ref[torch.Tensor]] = []
        self._new: list[weakref.ref[torch.Tensor]] = []
        self.between = 0
        """How many forwards took such a tensor."""

    def before_forward(self, args: Any, kwargs: Any) -> None:
        """Look at the tensors that a forward takes."""
        given = {id(t) for t in _tensors([*args, *kwargs.values()])}
        self.between += any(id(ref()) in given for ref in self._new)
        self._place, tensors = _variables()
        self._earlier, self._new = list(map(weakref.ref, tensors)), []

    def before_backward(self) -> None:
        """Look at the tensors that are there now."""
        place, tensors = _variables()
        if place == self._place:
            before = {id(ref()) for ref in self._earlier}
            self._new = [weakref.ref(t) for t in tensors if id(t) not in before]


_NOT_THE_LOOP = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


_LOOKS = frozenset(("locals", "vars"))
_HELD_HERE = 3
"""References to a frame's copy of its variables that nobody else holds: the frame's, ours, and the count's own."""


def _variables() -> tuple[int, list[torch.Tensor]]:
    """The function that has called torch, and the tensors among its variables."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_LOOP):
        frame = frame.f_back
    if frame is None:
        return 0, []
    in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if in_function and not _LOOKS.isdisjoint(frame.f_code.co_names):
        return id(frame), []  # what `locals()` gave to it would change, in Python before 3.13
    variables = frame.f_locals
    # Only by its type: to ask an object for its class may load what it stands for.
    tensors = {name: v for name, v in list(variables.items()) if issubclass(type(v), torch.Tensor)}
    if in_function and isinstance(variables, dict):  # a copy, which would keep them alive
        if sys.getrefcount(variables) == _HELD_HERE:
            variables.clear()
        else:  # others look at this copy, too
            for name in tensors:
                del variables[name]
    return id(frame), list(tensors.values())
