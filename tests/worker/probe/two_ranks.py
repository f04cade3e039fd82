"""`two_ranks.py RANK STORE FOLDER`: trainings on two Gloo ranks, with and without a probe, told as JSON."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling.errors import InputError
from scaling.worker.probe.agreement import Clocks

OPTIMIZER = importlib.import_module("torch.optim.optimizer")
STEPS, MICRO_STEPS = 50, 2
INNER = 24


def wrapped(cap=0.02):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1)) for _ in range(6)]
    return DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(64, 4)), bucket_cap_mb=cap)


def hooks(ddp):
    """What is registered where a probe could have left something."""
    return [
        len(ddp._forward_pre_hooks),
        len(ddp._forward_hooks),
        len(ddp.module._forward_pre_hooks),
        len(OPTIMIZER._global_optimizer_pre_hooks),
        len(OPTIMIZER._global_optimizer_post_hooks),
        "BackendSelect" in torch._C._dispatch_dump("c10d::allreduce_"),
    ]


def train(ddp, rank, make=None, steps=STEPS, baseline=False):
    """Losses, weights and the hooks seen in the middle; accumulation with no_sync, dropout and momentum."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses, seen = [], None
    probe = make(ddp) if make else None
    with probe or contextlib.nullcontext():
        for index in range(steps):
            with probe.step() if probe else contextlib.nullcontext():
                for micro in range(MICRO_STEPS):
                    last = micro == MICRO_STEPS - 1
                    with contextlib.nullcontext() if last else ddp.no_sync():
                        loss = ddp(torch.randn(8, 64, generator=generator)).square().mean()
                        loss.backward()
                    losses.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            if baseline and index == steps - 5:
                probe.baseline(lambda module: micro_steps(module, optimizer), rounds=3, steps=2)
            seen = hooks(ddp) if index == steps // 2 else seen
    return {
        "losses": losses,
        "weights": [p.tolist() for p in ddp.parameters()],
        "during": seen,
        "after": hooks(ddp),
    }


def micro_steps(module, optimizer):
    for micro in range(MICRO_STEPS):
        last = micro == MICRO_STEPS - 1
        with contextlib.nullcontext() if last or not hasattr(module, "no_sync") else module.no_sync():
            module(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@contextlib.contextmanager
def said(into, name):
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        yield
    into[name], last = [], "scaling: Probe: `scaling analyze "
    for line in text.getvalue().splitlines():
        into.setdefault("last", []).append(line) if line.startswith(last) else into[name].append(line)


def plain_step(ddp, optimizer, scale=1.0):
    loss = ddp(torch.ones(8, 64)).square().mean() * scale
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def misuse(folder):
    """Lines on standard error by case, and how many steps were trained all the same."""
    lines: dict[str, list[str]] = {}
    trained = {}
    try:
        Probe([torch.nn.Linear(2, 2)])
    except InputError as error:
        lines["no_module"] = str(error).splitlines()
    ddp = wrapped()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with said(lines, "nested"), Probe(ddp, run_dir=folder / "nested") as probe:
        for _ in range(INNER):
            with probe.step(), probe.step():
                trained["nested"] = plain_step(ddp, optimizer)
    with said(lines, "left_out"), Probe(ddp, run_dir=folder / "left_out"):
        for _ in range(INNER):
            trained["left_out"] = plain_step(ddp, optimizer)
    with said(lines, "two"), Probe(ddp, run_dir=folder / "two") as probe, Probe(ddp) as second:
        for _ in range(INNER):
            with probe.step(), second.step():
                trained["two"] = plain_step(ddp, optimizer)
    with said(lines, "planted"), Probe(ddp, run_dir=folder / "full") as probe:
        if dist.get_rank() == 1:
            (probe.run_dir / "launches/0/rank-1.jsonl").symlink_to(folder / "of-the-user")
        for _ in range(INNER):
            with probe.step():
                plain_step(ddp, optimizer)
        probe.baseline(lambda module: plain_step(module, optimizer))
        with probe.step():
            trained["planted"] = plain_step(ddp, optimizer)
    with said(lines, "shared"), Probe(ddp, run_dir=folder / "shared") as probe:
        for _ in range(INNER):
            with probe.step():
                plain_step(ddp, optimizer)
        before = [p.tolist() for p in ddp.parameters()]
        probe.baseline(lambda module: (plain_step(module, optimizer), dist.all_reduce(torch.ones(1))))
        assert before == [p.tolist() for p in ddp.parameters()]
        with probe.step():
            trained["shared"] = plain_step(ddp, optimizer)
    (folder / "file").write_text("not a folder")
    with said(lines, "unwritable"), Probe(ddp, run_dir=folder / "file" / "below") as probe:
        for _ in range(INNER):
            with probe.step():
                trained["unwritable"] = plain_step(ddp, optimizer)
    return {"lines": lines, "trained": sorted(trained)}


class BrokenError(Exception):
    pass


def kinds(folder):
    """Loops of other kinds, each into a folder of its own."""
    ddp = wrapped()
    first, second = list(ddp.parameters())[:4], list(ddp.parameters())[4:]
    two = [torch.optim.SGD(first, lr=0.01), torch.optim.AdamW(second, lr=0.001)]
    with Probe(ddp, run_dir=folder / "optimizers") as probe:
        for index in range(46):
            with probe.step():
                ddp(torch.ones(8, 64)).square().mean().backward()
                for optimizer in two:
                    optimizer.step()
                    optimizer.zero_grad()
            if index == 20:  # an evaluation
                with torch.no_grad():
                    ddp.module(torch.ones(8, 64))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with Probe(ddp, run_dir=folder / "autocast") as probe:
        for _ in range(46):
            with probe.step():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = ddp(torch.ones(8, 64)).float().square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    with Probe(ddp, run_dir=folder / "micro") as probe:  # step() around every micro-step
        for index in range(92):
            last = index % 2 == 1
            with probe.step(), contextlib.nullcontext() if last else ddp.no_sync():
                ddp(torch.ones(8, 64)).square().mean().backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
    with Probe(ddp, run_dir=folder / "unsynced") as probe:  # no_sync forgotten
        for _ in range(46):
            with probe.step():
                for _ in range(MICRO_STEPS):
                    ddp(torch.ones(8, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    with Probe(ddp, run_dir=folder / "unsynced_micro") as probe:
        for index in range(92):
            with probe.step():
                ddp(torch.ones(8, 64)).square().mean().backward()
                if index % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    compiled = torch.compile(wrapped(cap=None), backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.01)
    with Probe(compiled, run_dir=folder / "compiled") as probe:
        for _ in range(46):
            with probe.step():
                plain_step(compiled, optimizer)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with contextlib.suppress(BrokenError), Probe(ddp, run_dir=folder / "broken") as probe:
        for index in range(46):
            with probe.step():
                if index == 40:
                    raise BrokenError("in the loop")
                plain_step(ddp, optimizer)
    with Probe(ddp, run_dir=folder / "failed") as probe:
        for index in range(66):
            if index == 18 and dist.get_rank():
                with contextlib.suppress(RuntimeError), probe.step():
                    ddp(torch.ones(8, 63))  # this rank's batch fails in forward, and it takes the next one
            with probe.step():
                plain_step(ddp, optimizer)
    return {"after": hooks(ddp)}


def clocks(rank):
    """Notes before slots 0 to 3, half a second each, had the two ranks a kernel each."""
    store = dist.PrefixStore("clocks", dist.distributed_c10d._get_default_store())
    two_kernels = SimpleNamespace(rank=rank, kernels=[0, 1], members=[0, 1], store=store)
    found, notes = Clocks(two_kernels), []
    for slot in range(4):
        time.sleep(0.5)
        found.look(slot, lambda record, slot=slot: notes.append([slot, record.TAG, asdict(record)]))
    return notes


def main(rank: int, folder: str) -> dict:
    folder = Path(folder)
    result = {
        "absent": train(wrapped(), rank),
        "on": train(wrapped(), rank, lambda d: Probe(d, run_dir=folder / "on")),
    }
    os.environ["SCALING_PROBE"] = "0"
    result["off"] = train(wrapped(), rank, lambda d: Probe(d, run_dir=folder / "off"))
    del os.environ["SCALING_PROBE"]
    result["again"] = train(wrapped(), rank, lambda d: Probe(d, run_dir=folder / "on"))
    result["baseline"] = train(
        wrapped(), rank, lambda d: Probe(d, run_dir=folder / "baseline"), baseline=True
    )
    result["misuse"] = misuse(folder)
    result["clocks"] = clocks(rank)
    result["kinds"] = kinds(folder)
    return result


if __name__ == "__main__":
    as_rank(main)
