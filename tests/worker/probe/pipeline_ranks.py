"""`pipeline_ranks.py RANK STORE FOLDER`: pipelines on two Gloo ranks, some with a probe, told as JSON."""

import contextlib
import io
import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from scaling import Probe
from scaling.errors import InputError

RANKS, STEPS, MICROBATCHES, SAMPLES, WIDTH = 2, 36, 4, 8, 16
NAP_S = 0.006


def whole(stages):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(stages)))


def loss_of(output, target):
    return (output - target).square().mean()


def batches(steps=STEPS):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, SAMPLES, WIDTH, generator=generator) for _ in range(steps)]


def scheduled(kind, stages):
    """The schedule and its stages' modules by their names in the whole model."""
    rank, model = dist.get_rank(), whole(stages)
    mine = list(range(rank, stages, RANKS))
    parts = [pipelining.PipelineStage(model[i], i, stages, torch.device("cpu")) for i in mine]
    taken = parts if stages > RANKS else parts[0]
    return getattr(pipelining, kind)(taken, MICROBATCHES, loss_fn=loss_of), {i: model[i] for i in mine}


def train(kind, stages, make=None, *, steps=STEPS, nap_s=0.0):
    """Losses and weights by stage; `make`: opens a probe. `nap_s`: the last stage's sleep in each forward."""
    schedule, mine = scheduled(kind, stages)
    slept_s = []

    def nap(_module, _inputs):
        begin = time.perf_counter()
        time.sleep(nap_s)
        slept_s.append(time.perf_counter() - begin)

    if nap_s and dist.get_rank() == RANKS - 1:
        mine[stages - 1].register_forward_pre_hook(nap)
    optimizer = torch.optim.SGD([p for part in mine.values() for p in part.parameters()], lr=0.1)
    losses, probe = [], make(schedule) if make else None
    inside = probe.step if probe else contextlib.nullcontext
    first, last = dist.get_rank() == 0, dist.get_rank() == RANKS - 1
    with probe or contextlib.nullcontext():
        for inputs, target in batches(steps):
            with inside():
                of_step = []
                given = (inputs,) if first else ()
                schedule.step(*given, **({"target": target, "losses": of_step} if last else {}))
                losses += [float(sum(of_step) / len(of_step))] if last else []
                optimizer.step()
                optimizer.zero_grad()
    return {
        "losses": losses,
        "weights": {i: [p.tolist() for p in part.parameters()] for i, part in mine.items()},
        "left": left(schedule),
        "slept_ms": 1e3 * sum(slept_s) / steps,
    }


def left(schedule):
    """What a probe could have left behind."""
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    replaced = [name for one in (schedule, *stages) for name, value in vars(one).items() if callable(value)]
    hooks = sum(len(stage.submod._forward_pre_hooks) for stage in stages)
    return [sorted(replaced), hooks, type(schedules._batch_p2p).__name__]


def alone(stages):
    """The same training of the whole model."""
    model = whole(stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, target in batches():
        parts = zip(inputs.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)
        each = [loss_of(model(x), y) for x, y in parts]
        loss = sum(each) / MICROBATCHES
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {
        "losses": losses,
        "weights": {i: [p.tolist() for p in model[i].parameters()] for i in range(stages)},
    }


def said(make):
    """What making and closing a probe says on standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        try:
            make().open().close()
        except InputError as error:
            return str(error)
    return text.getvalue()


def main(_rank, folder):
    folder = Path(folder)
    answer = {"alone 2": alone(2), "alone 4": alone(4)}
    for name, kind, stages in (
        ("gpipe", "ScheduleGPipe", 2),
        ("1f1b", "Schedule1F1B", 2),
        ("interleaved", "ScheduleInterleaved1F1B", 4),
    ):
        answer[name] = train(kind, stages)
        answer[f"{name} probed"] = train(
            kind, stages, lambda one, name=name: Probe(one, run_dir=folder / name)
        )
    late = train(
        "Schedule1F1B", RANKS, lambda one: Probe(one, run_dir=folder / "late"), steps=75, nap_s=NAP_S
    )
    answer["slept_ms"] = late["slept_ms"]
    answer["a stage"] = said(
        lambda: Probe(scheduled("ScheduleGPipe", RANKS)[0]._stage, run_dir=folder / "no")
    )
    return answer


if __name__ == "__main__":
    as_rank(main)
