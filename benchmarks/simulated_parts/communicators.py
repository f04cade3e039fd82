"""DDP whose buckets go over two communicators that share a wire, seen by the harness's tap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from simulated_device import ranks as processes

from scaling.analysis.decompose.detailed import Merged, merge
from scaling.analysis.network.replay import Replay
from scaling_simulator.device import set_wire
from simulated_parts import rank as ranking
from simulated_parts.case import Case
from simulated_parts.tapped import STEPS, Together, Trained, prepared, train
from simulated_parts.truth import Seen, of_steps

NAMES = ("first", "second")


def _ranked(rank: int, ranks: int, *, case: Case) -> Trained:
    device, stalls = prepared(case, rank)
    groups = [dist.new_group(list(range(ranks)), group_desc=name) for name in NAMES]
    set_wire(*NAMES)
    torch.manual_seed(0)
    net = ranking.Layers(case.widths, stalls).to(device.torch_device)
    return train(device, net, case.widths[0], groups=groups, hook=_alternating(groups))


def _alternating(groups: list[Any]) -> Callable[..., Any]:
    def hook(_state: object, bucket: Any) -> Any:
        group = groups[bucket.index() % len(groups)]
        tensor = bucket.buffer().div_(dist.get_world_size(group))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    hook.__annotations__ = {}  # DDP checks them by identity, and postponed ones are text
    return hook


def run(case: Case) -> tuple[Merged, Replay, list[list[Seen]]]:
    """The merged steps, the same as periods, and what each rank knows of each step."""
    trained = processes.run(_ranked, case.ranks, case=case)
    together = Together.of(trained)
    stamps = together.stamps(range(len(together.rows)))
    merged = merge(stamps)
    last = stamps.done.max(axis=2)[:-1]
    replay = Replay(
        ready=stamps.launch[1:] - last[:, :, None],
        compute_end=stamps.compute_end[1:] - last,
        transfer=merged.transfer[1:],
        start=last - last.max(axis=1, keepdims=True),
        channel=stamps.channel,
    )
    return merged, replay, [of_steps(t.tasks, STEPS, len(together.rows)) for t in trained]
