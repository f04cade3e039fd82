"""What a collective says of itself: its size, its group and its number."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from scaling.trace import signs
from scaling.trace.columns import Sent
from scaling.trace.events import Args

_WORDS = re.compile(r'"([^"]*)"')


def sent_of(args: Args, collective: str) -> Sent:
    """Sizes in nccl-tests' sense: the larger of what goes in and what comes out of one rank, where both are told."""
    elements: float | None = None
    if args.in_elements is not None or args.out_elements is not None:
        elements = max(args.in_elements or 0, args.out_elements or 0)
    size = signs.element_bytes(args.dtype) if args.dtype else None
    if elements is None and bytes(args.dims):
        words = _WORDS.findall(bytes(args.types).decode("utf-8", "replace"))
        elements, size = _elements(bytes(args.dims)), signs.element_bytes(words[0]) if words else None
    return Sent(
        collective=collective,
        bytes=None if elements is None or size is None or elements <= 0 else int(elements * size),
        group=args.group or "",
        group_size=int(args.group_size) if args.group_size else None,
        seq=int(args.seq) if args.seq is not None else None,
        inputs_only=args.out_elements is None,  # `Input Dims` has no outputs either
    )


def _elements(dims: bytes) -> float | None:
    """Elements of all tensors of an `Input Dims`; None where it is nothing of that kind."""

    def count(shape: Any) -> float:
        if all(isinstance(n, int) for n in shape):
            return math.prod(map(float, shape)) if shape else 0.0
        return sum(count(inner) for inner in shape if isinstance(inner, list))

    try:
        found = json.loads(dims)
        return count(found) if isinstance(found, list) else None
    except (ValueError, TypeError, RecursionError):
        return None
