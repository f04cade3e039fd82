"""DDP over a module with SyncBatchNorm, whose ranks wait for each other in forward and in backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from simulated_device import ranks as processes
from torch import nn

from scaling.analysis.decompose.detailed import merge
from scaling.analysis.network.channel import Channel
from scaling.analysis.network.replay import Mark, Program
from scaling_simulator.trace import Task
from simulated_parts import rank as ranking
from simulated_parts.case import Case
from simulated_parts.tapped import STEPS, Together, Trained, prepared, train


class Normed(nn.Module):
    """Layers of one width with a norm over all ranks behind each."""

    def __init__(self, width: int, layers: int, stalls: ranking.Stalls) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(width, width, bias=False), nn.SyncBatchNorm(width))
                for _ in range(layers)
            )
        )
        self._stalls = stalls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Late before the first layer."""
        self._stalls.step()
        outputs: torch.Tensor = self.layers(x)
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """What was found of the norms' collectives, and what is known; ns a step and rank, R each."""

    skew: np.ndarray
    transfer: np.ndarray
    known_skew: np.ndarray
    known_transfer: np.ndarray
    program: Program
    count: int
    """Collectives of the norms in a step."""

    @property
    def period_ns(self) -> float:
        """Mean step of the program."""
        return float(self.program.period().mean())

    def cost_ns(self, rank: int) -> float:
        """What a rank's lateness costs a step."""
        return self.period_ns - float(self.program.without([rank]).period().mean())

    def latest(self) -> int:
        """The rank with the most time of its own."""
        return int(self.program.computed().mean(axis=0).argmax())


def _ranked(rank: int, ranks: int, *, case: Case) -> Trained:  # noqa: ARG001
    device, stalls = prepared(case, rank)
    torch.manual_seed(0)
    net = Normed(case.widths[0], len(case.widths), stalls).to(device.torch_device)
    return train(device, net, case.widths[0])


def run(case: Case) -> Normal:
    """Run it, and take the waits apart."""
    trained = processes.run(_ranked, case.ranks, case=case)
    together = Together.of(trained)
    count = len(together.rows)
    # The norms' collectives are small; buckets hold whole matrices.
    inline = [k for k, row in enumerate(together.rows) if row.bytes < 4 * case.widths[0] ** 2]
    merged = merge(together.stamps(range(count)))
    begun, done = merged.begun[:, None, inline], merged.finished[:, None, inline]
    launch = together.launch[:, :, inline]
    # Behind a bucket on the same communicator it waits too, but for data and not for a rank.
    waited = np.clip(merged.released[:, None, inline] - launch, 0.0, None)
    return Normal(
        skew=waited.sum(axis=2).mean(axis=0),
        transfer=np.broadcast_to(done - begun, launch.shape).sum(axis=2).mean(axis=0),
        known_skew=np.array([_known(rank.tasks, count, inline, "wait_ns") for rank in trained]),
        known_transfer=np.array([_known(rank.tasks, count, inline, "alone_ns") for rank in trained]),
        program=_program(together, merged.transfer, set(inline)),
        count=len(inline),
    )


def _known(tasks: list[Task], count: int, inline: list[int], what: str) -> float:
    """Mean over steps of what the simulation knows of these collectives of a step."""
    ours = sorted((t for t in tasks if "/" in t.name), key=lambda t: t.queued_ns)[-STEPS * count :]
    return sum(getattr(ours[step * count + k], what) for step in range(STEPS) for k in inline) / STEPS


def _program(together: Together, transfer: np.ndarray, inline: set[int]) -> Program:
    """Each step as launches and waits: at once for a norm's collective, behind backward for a bucket."""
    launch, done = together.launch, together.done
    buckets = [k for k in range(launch.shape[2]) if k not in inline]
    last = np.maximum(together.compute_end, done[:, :, buckets].max(axis=2))
    resumed = last[:-1]
    marks: list[Mark] = []
    own_ns: list[np.ndarray] = []

    def mark(k: int, at: np.ndarray, *, waits: bool) -> None:
        nonlocal resumed
        marks.append(Mark(waits=waits, collective=k))
        own_ns.append(at - resumed)
        if waits:
            resumed = np.maximum(at, done[1:, :, k])

    for k in range(launch.shape[2]):
        mark(k, launch[1:, :, k], waits=False)
        if k in inline:
            mark(k, launch[1:, :, k], waits=True)
    for k in buckets:
        mark(k, np.maximum(together.compute_end[1:], resumed), waits=True)
    ranks = tuple(range(launch.shape[1]))
    each = np.broadcast_to(transfer[1:, None, :], launch[1:].shape)
    return Program(
        marks=tuple(marks),
        own_ns=np.stack(own_ns, axis=2),
        transfer=each,
        lag=np.zeros_like(each),
        members=((ranks,),) * launch.shape[2],
        channel=Channel(fifo=True),
        start=last[:-1] - last[:-1].max(axis=1, keepdims=True),
    )
