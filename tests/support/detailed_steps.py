"""Rows of detailed steps and of their collectives, as the tables have them, from times in ms."""

from __future__ import annotations

from typing import Any

MS = 1_000_000
WAITS = ("earlier", "buffer", "forward", "backward", "input", "optimizer", "host")
PARTS = ("input_ns", "optimizer_ns", "backward_ns", *(f"{name}_wait_ns" for name in WAITS))


def _place(step: int, rank: int) -> dict[str, Any]:
    return {
        "launch": 0,
        "block": 1,
        "round": 0,
        "step": step,
        "rank": rank,
        "arm": "probe",
        "detailed": True,
    }


def step_row(step: int, rank: int, begin: float, end: float, **waits: float) -> dict[str, Any]:
    """A step that ends with its communication; `waits` by phase. All else took no time."""
    ends = dict.fromkeys(("end_ns", "sync_end_ns", "compute_end_ns"), end * MS)
    waited = {f"{name}_wait_ns": ms * MS for name, ms in waits.items()}
    return _place(step, rank) | dict.fromkeys(PARTS, 0.0) | {"begin_ns": begin * MS} | ends | waited


def collective_row(
    step: int, rank: int, sent: dict[str, int], launch: float, done: float, window: tuple[float, float] = ()
) -> dict[str, Any]:
    """A collective, ready when it is launched. `sent`: seq, kind, phase, unit, bytes and group.

    `window`: from when to when the rank waited for it, if not all the time.
    """
    wait, resume = window or (launch, done)
    stamps = {"ready": launch, "launch": launch, "done": done, "wait": wait, "resume": resume, "start": 0.0}
    return _place(step, rank) | sent | {f"{name}_ns": round(at * MS) for name, at in stamps.items()}
