"""`faulty.py RANK STORE FOLDER`: trainings with a Probe in which one call that it makes fails, told as JSON.

Every place in `scaling` that calls something while a training runs is found first, in a training without faults. Then a
forked process trains anew for each place, where the first call (and one in the middle, where there are several) raises.
The calls that are the training's own (what stands around a module's call calls the module) are left out. In the same
places a signal comes, whose handler raises: that has to reach the training.
"""

import collections
import copy
import errno
import hashlib
import io
import json
import os
import re
import signal
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import scaling
from scaling import Probe

ROOT = str(Path(scaling.__file__).parent)
DOOR = str(Path(ROOT) / "worker/parallel/guard.py")
STEPS, BEFORE_BASELINE, BEFORE_SAVE = 28, 17, 22
KINDS = ("ddp", "fsdp", "found")
"""A model that the Probe is given, DDP's or a sharded one, and one of DDP that it finds."""
PASSED_ON = {"collective", "__getattr__"}
"""Functions of ours that do what the training asked for and nothing else: a reduction, an attribute of its own."""
UNGUARDED = {"setprofile", "attempt"}
"""What this script does, and the guard, whose own entry nothing guards."""
DROPPED = re.compile(r"tap\.py:done:|:done$|tap\.py:_stamp_end:\d+:call$")
"""Torch calls `done` where a collective is done, and drops what a signal's handler raises in there or at its call. One
that is done when the callback is given calls it at once."""
FAULTS = (
    OSError(errno.ENOSPC, "No space left on device"),
    ValueError("I/O operation on closed file"),
    RuntimeError("an event failed"),
    ImportError("no module of that name"),
    MemoryError(),
    AttributeError("no such attribute"),
)


class PreemptedError(TimeoutError):
    """What the training's handler of SIGUSR1 raises; Python's own one of SIGINT raises KeyboardInterrupt."""


def preempt(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise PreemptedError


class Faults:
    """Counts the calls of each place, or raises at one of them."""

    def __init__(self, place=None, number=0, fault=None):
        self.calls = collections.Counter()
        self._place, self._number, self._fault = place, number, fault
        self.is_signal = isinstance(fault, signal.Signals)
        self.raised = False

    def __call__(self, frame, event, argument):
        if event == "call":
            caller, called = frame.f_back, frame.f_code
            inside = called.co_filename.startswith(ROOT)
            name = called.co_name
        elif event == "c_call":
            caller, inside, name = frame, False, argument.__name__
        else:
            return
        if caller is None or not caller.f_code.co_filename.startswith(ROOT):
            return
        by_the_door = caller.f_code.co_filename == DOOR and not inside
        if by_the_door or PASSED_ON & {caller.f_code.co_name, name} or name in UNGUARDED:
            return
        code = caller.f_code
        place = f"{code.co_filename[len(ROOT) :]}:{code.co_name}:{caller.f_lasti}:{name}"
        self.calls[place] += 1
        if place == self._place and self.calls[place] == self._number:
            self.raised = True
            if isinstance(self._fault, Exception):
                raise self._fault
            signal.raise_signal(self._fault)


def model_of(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    if kind != "fsdp":
        return DistributedDataParallel(model)
    fully_shard(model[0])
    return fully_shard(model)


def train(kind, folder, faults):
    """Losses, weights and the bytes of a checkpoint; `faults`: None trains without a Probe."""
    model = model_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []

    def step(module):
        loss = module(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    sys.setprofile(faults)
    if faults is None:
        losses = [step(model) for _ in range(STEPS)]
    else:
        given = None if kind == "found" else model
        options = {
            "run_dir": folder,
            "name": "faulty",
            "batch": 4,
            "live": True,
            "log": lambda _figures: None,
        }
        with Probe(given, **options) as probe:
            for index in range(STEPS):
                if index == BEFORE_BASELINE:
                    state = generator.get_state()
                    probe.baseline(
                        lambda module: module(torch.ones(4, 8)).sum().backward(), rounds=1, steps=1
                    )
                    generator.set_state(state)
                if index == BEFORE_SAVE:
                    with probe.pause("a copy"):
                        torch.save(copy.deepcopy(model.state_dict()), io.BytesIO())
                with probe.step():
                    losses.append(step(model))
                    probe.tokens(4)
    sys.setprofile(None)
    saved = io.BytesIO()
    torch.save(model.state_dict() if kind == "fsdp" else model.module, saved)
    weights = [p.to_local() if kind == "fsdp" else p for p in model.parameters()]
    return [losses, [w.tolist() for w in weights], hashlib.sha256(saved.getvalue()).hexdigest()]


def in_child(kind, folder, faults):
    """A training in a process of its own: its outcome, the places, and whether the fault was raised."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        code, answer = 1, None
        try:
            dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=0, world_size=1)
            signal.signal(signal.SIGUSR1, preempt)
            ignored = []
            sys.unraisablehook = ignored.append
            try:
                outcome = train(kind, folder, faults)
            except (PreemptedError, KeyboardInterrupt):
                outcome = "interrupted"
            raised = faults and faults.raised
            if raised and faults.is_signal and ignored:
                raised = False  # Python drops what is raised where a generator or a collection ends, whoever's it is
            answer = [outcome, dict(faults.calls) if faults else {}, bool(raised)]
            code = 0
        except BaseException as error:  # noqa: BLE001
            sys.setprofile(None)
            answer = ["".join(traceback.format_exception(error))[-900:], {}, True]
        with os.fdopen(theirs, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(code)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or '["the process died", {}, true]')


def main():
    folder, share = Path(sys.argv[3]), int(sys.argv[4])
    warnings.simplefilter("ignore")
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    torch.set_num_threads(1)
    warm = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(warm.parameters(), lr=0.01, momentum=0.9)
    warm(torch.ones(4, 8)).sum().backward()  # what torch imports late, each child has then
    optimizer.step()
    torch.save(warm, io.BytesIO())
    told = {}
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        without = in_child(kind, folder / f"{kind}-without", None)[0]
        outcome, calls, _ = in_child(kind, folder / f"{kind}-whole", Faults())
        tried = [(place, 1) for place in calls] + [(p, n // 2 + 1) for p, n in calls.items() if n > 2]
        otherwise, raised = [], {"faults": 0, "signals": 0}
        for index, (place, number) in enumerate(tried[::share]):
            fault, signalled = FAULTS[index % len(FAULTS)], (signal.SIGUSR1, signal.SIGINT)[index % 2]
            for what, given, expected in (("faults", fault, without), ("signals", signalled, "interrupted")):
                if what == "signals" and DROPPED.search(place):
                    continue
                name = f"{kind}-{what}-{index}"
                ended, _, there = in_child(kind, folder / name, Faults(place, number, given))
                raised[what] += there
                if ended != (expected if there else without):
                    ended = (
                        ended if isinstance(ended, str) else "other numbers" if ended != without else "lost"
                    )
                    otherwise.append([place, number, repr(given), ended])
        told[kind] = {
            "calls": sum(calls.values()),
            "places": len(calls),
            "equal": outcome == without,
            "recorded": (folder / f"{kind}-whole/launches/0/rank-0.jsonl").exists(),
            **raised,
            "otherwise": otherwise,
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
