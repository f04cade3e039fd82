"""What an open Probe leaves on a model: nothing that a copy, a checkpoint, a script or a forked process finds.

Every case is run with a Probe and without, and both have to give the same.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import inspect
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import typing
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.gloo_ranks import free_address, run_ranks
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from scaling import Probe
from scaling.worker.parallel.torch_private import param_groups
from scaling.worker.probe.agreement import patience
from scaling.worker.probe.hooked import Hooked
from scaling.worker.probe.probe import _devices_of_parent

pytestmark = pytest.mark.usefixtures("one_rank")
STEPS = 20


class Careless(torch.nn.Module):
    """Pickles all that it has, as many models with a `__getstate__` of their own do."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.inner(x)

    def __getstate__(self):
        return self.__dict__.copy()


def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def trained(model, steps=STEPS, step=contextlib.nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        with step():
            loss = model(torch.randn(4, 8, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def deep_copy(model):
    twin = copy.deepcopy(model.module)
    return [trained(twin), saved(twin), sorted(vars(twin))]


def average(model):
    mean = torch.optim.swa_utils.AveragedModel(model)
    mean.update_parameters(model)
    return [mean(torch.ones(2, 8)).tolist(), saved(mean.module.module)]


def checkpoint(model):
    return [saved(model.module), saved(model.state_dict()), list(model.module.named_modules())]


def script(model):
    scripted, traced = torch.jit.script(model.module), torch.jit.trace(model.module, torch.ones(2, 8))
    return [scripted.code, traced.code, scripted(torch.ones(2, 8)).tolist()]


def shallow(model):
    other = copy.copy(model.module)
    return [other(torch.ones(2, 8)).tolist(), sorted(vars(other))]


def shared(model):
    """A twin that shares all attributes, but has other layers."""
    twin = torch.nn.Sequential.__new__(torch.nn.Sequential)
    vars(twin).update(vars(model.module))
    vars(twin)["_modules"] = {"0": torch.nn.Identity()}
    return twin(torch.ones(2, 8)).tolist()


def lbfgs(model):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(5)]


def loader(method):
    def batches(model):
        data = TensorDataset(torch.arange(320.0).reshape(40, 8))
        loaded = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method)
        return [model(x).sum().item() for (x,) in loaded]

    return batches


def outputs(model):
    """torch.save warns of hooks on a tensor, but not of those that it may leave out."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return [len(saved(model(torch.ones(2, 8)))), [str(one.message) for one in told]]


KEPT = torch.save, torch.distributed.checkpoint.save, torch.distributed.checkpoint.async_save, dist.all_reduce


def pickled_functions(_model):
    now = (
        torch.save,
        torch.distributed.checkpoint.save,
        torch.distributed.checkpoint.async_save,
        dist.all_reduce,
    )
    same = [
        one is before and pickle.loads(pickle.dumps(one)) is before
        for one, before in zip(now, KEPT, strict=True)
    ]
    return same, [pickle.dumps(one) for one in KEPT], [vars(one).keys() for one in KEPT]


CASES = {
    "deepcopy": deep_copy,
    "average": average,
    "checkpoint": checkpoint,
    "script": script,
    "copy": shallow,
    "shared": shared,
    "lbfgs": lbfgs,
    "fork": loader("fork"),
    "spawn": loader("spawn"),
    "outputs": outputs,
    "pickled": pickled_functions,
}


def outcome(case, run_dir, *, found=False):
    """Losses before and after, and what the case gave; `run_dir`: with a Probe that records there.

    `found`: the Probe is not told the model.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    given = None if found else model
    with Probe(given, run_dir=run_dir) if run_dir else contextlib.nullcontext() as probe:
        step = probe.step if probe else contextlib.nullcontext
        before = trained(model, step=step)
        with step():
            given = case(model)
        return [before, given, trained(model, step=step)]


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
@pytest.mark.parametrize("case", CASES)
def test_with_a_probe_it_is_what_it_is_without(case, found, tmp_path):
    with_probe, without = (str(outcome(CASES[case], run, found=found)) for run in (tmp_path / "run", None))
    assert with_probe == without
    assert (tmp_path / "run/launches/0/rank-0.jsonl").exists()


def test_a_module_that_pickles_all_it_has_pickles_nothing_of_the_probe(tmp_path):
    torch.manual_seed(0)
    model = DistributedDataParallel(Careless())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        text, twin = saved(model.module), copy.deepcopy(model.module)
    assert b"scaling" not in text
    assert twin._compiled_call_impl is None
    assert twin(torch.ones(2, 8)).tolist() == model(torch.ones(2, 8)).tolist()


def test_a_checkpoint_loads_where_there_is_neither_a_group_nor_this_package(tmp_path):
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        torch.save(model.module, tmp_path / "model.pt")
    code = (
        "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); m(torch.ones(2, 8)); "
        "assert 'scaling' not in sys.modules and not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "model.pt"], check=True, cwd=tmp_path)


def test_a_sharded_module_has_the_same_state_and_losses(tmp_path):
    def run(run_dir):
        torch.manual_seed(0)
        model = net()
        fully_shard(model[0])
        fully_shard(model)
        with Probe(model, run_dir=run_dir) if run_dir else contextlib.nullcontext() as probe:
            losses = trained(model, step=probe.step if probe else contextlib.nullcontext)
            hooks = [len(one._forward_pre_hooks) for one in model.modules()]
            states = model.state_dict(), get_model_state_dict(model)
        return [losses, hooks, [{k: v.to_local().tolist() for k, v in s.items()} for s in states]]

    assert run(tmp_path / "run") == run(None)


@pytest.mark.slow  # two ranks
def test_whole_states_of_a_sharded_model_and_its_optimizer_are_the_same(tmp_path):
    script = Path(__file__).with_name("sharded_states.py")
    assert run_ranks(script, 2, free_address(), tmp_path / "run") == [True, True]
    assert (tmp_path / "run/launches/0/rank-1.jsonl").exists()


def test_what_a_launched_script_copies_has_nothing_either(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALING_RUN_DIR", str(tmp_path / "run"))
    torch.manual_seed(0)
    hooked = Hooked()
    with hooked.installed():
        model = DistributedDataParallel(net())
        losses = trained(model, 45)
        first = deep_copy(model)
        second = saved(copy.deepcopy(model.module))
        hooked.close(None)
    assert (tmp_path / "run/launches/0/rank-0.jsonl").exists()
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    assert trained(model, 45) == losses
    assert deep_copy(model) == first
    assert saved(model.module) == second


def test_a_closed_probe_holds_no_model(tmp_path):
    model = DistributedDataParallel(net())
    kept = []
    with Probe(model, run_dir=tmp_path / "run") as probe:
        for _ in range(STEPS):
            with probe.step():
                kept.append(model(torch.ones(4, 8)))
                kept[-1].sum().backward(retain_graph=True)
    del kept[:-1]
    gone = weakref.ref(model), weakref.ref(model.module)
    kept = [kept[0].detach()]
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert probe.run_dir == tmp_path / "run"


def test_an_open_probe_keeps_no_optimizer_that_the_loop_made_anew(tmp_path):
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        gone = []
        for _ in range(3):
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(STEPS):
                with probe.step():
                    model(torch.ones(4, 8)).sum().backward()
                    optimizer.step()
            gone.append(weakref.ref(optimizer))
        gc.collect()
        assert [each() for each in gone] == [None, None, optimizer]


def test_a_twin_that_shares_its_attributes_outlives_the_model(tmp_path):
    model = DistributedDataParallel(Careless())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        twin, expected = copy.copy(model.module), model(torch.ones(2, 8)).tolist()
    del model
    gc.collect()
    assert twin(torch.ones(2, 8)).tolist() == expected


def test_an_error_of_an_earlier_cell_of_a_notebook_is_not_the_trainings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "last_value", NameError("an earlier cell's"), raising=False)
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
    last = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["state"] == "done"


def test_a_copy_of_a_probe_does_nothing(tmp_path):
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        for twin in (copy.deepcopy({"probe": probe})["probe"], copy.copy(probe)):
            with twin.open().step():
                twin.tokens(4)
            twin.close()
        assert trained(model, step=probe.step)
    assert (tmp_path / "run/launches/0/rank-0.jsonl").exists()


def test_a_parameter_that_forward_returns_keeps_no_hook(tmp_path):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, _x):
            return self.scale

    model = DistributedDataParallel(Scale())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
    assert not model.module.scale._backward_hooks


class Functions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        self.seen = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


class Watched(torch.Tensor):
    """A tensor class that notes what it is asked for."""

    seen: typing.ClassVar = collections.Counter()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen[str(function)] += 1
        return super().__torch_function__(function, types, args, kwargs)


class Plain(torch.nn.Module):
    """Trained as it is, with calls of its own over the group, and given tensors of another class."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.BatchNorm1d(8)
        self.outer = torch.nn.Linear(8, 2)

    def forward(self, x):
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.wait()
        return self.outer(self.inner(x).as_subclass(Watched)).as_subclass(torch.Tensor)


def wrapped():
    return DistributedDataParallel(net())


def sharded():
    model = net()
    fully_shard(model[0])
    return fully_shard(model)


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
@pytest.mark.parametrize("make", [wrapped, sharded, Plain])
@pytest.mark.parametrize("kind", [Functions, Operators])
def test_what_a_mode_of_the_training_sees_is_the_training_alone(kind, make, found, tmp_path):
    def seen(run_dir):
        torch.manual_seed(0)
        model, mode = make(), kind()
        given = None if found else model
        Watched.seen.clear()
        with mode, Probe(given, run_dir=run_dir) if run_dir else contextlib.nullcontext() as probe:
            losses = trained(model, 36, step=probe.step if probe else contextlib.nullcontext)
        return losses, mode.seen, dict(Watched.seen)

    assert seen(tmp_path / "run") == seen(None)
    assert (tmp_path / "run/launches/0/rank-0.jsonl").exists()


class PreemptedError(Exception):
    """What a handler of the training raises."""


class Interrupting:
    """The signal comes while the Probe asks for the name's text."""

    def __str__(self):
        signal.raise_signal(signal.SIGUSR1)
        return "name"


class Handler:
    """A handler that is an object, or a method of one."""

    def __init__(self, handler):
        self._handler = handler

    def __call__(self, *given):
        self._handler(*given)

    method = __call__


def once(handler):
    """A handler that removes itself, and says otherwise what it was told."""

    def call(number, frame):
        signal.signal(number, signal.SIG_IGN)
        try:
            handler()
        except PreemptedError as error:
            raise TimeoutError(frame) from error

    return call


KINDS = {
    "function": lambda handler: handler,
    "partial": functools.partial,
    "object": Handler,
    "method": lambda handler: Handler(handler).method,
    "once": once,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_signal_handler_raises_reaches_the_training(kind, tmp_path):
    def preempt(*_):
        raise PreemptedError

    before = signal.signal(signal.SIGUSR1, KINDS[kind](preempt))
    try:
        with pytest.raises((PreemptedError, TimeoutError)):
            Probe(DistributedDataParallel(net()), run_dir=tmp_path / "run", name=Interrupting())
    finally:
        signal.signal(signal.SIGUSR1, before)


class OddError(Exception):
    """Raises what it holds when it is asked for its text."""

    def __str__(self):
        raise self.args[0]


@pytest.mark.parametrize(
    "inner", [SystemExit(7), KeyboardInterrupt(), GeneratorExit(), ValueError()], ids=repr
)
def test_an_error_without_a_text_ends_no_training_and_ends_it_no_other_way(inner, tmp_path, capsys):
    def log(_figures):
        raise OddError(inner)

    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "log", log=log) as probe:
        assert len(trained(model, 120, step=probe.step)) == 120
    assert "stopped: OddError" in capsys.readouterr().err

    def ends():
        with Probe(model, run_dir=tmp_path / "run") as probe:
            trained(model, step=probe.step)
            raise OddError(inner)

    with pytest.raises(OddError):
        ends()
    last = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()[-1]
    assert '"error":"OddError"' in last


def test_it_waits_no_longer_than_collectives_of_the_others():
    group = dist.new_group([0], timeout=timedelta(seconds=12))
    assert patience([]).total_seconds() == 120
    assert patience([group]).total_seconds() == 6


def test_a_forked_process_writes_nothing_into_the_records(tmp_path):
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        if os.fork() == 0:
            probe.close()  # as the end of the interpreter does
            os._exit(0)
        os.wait()
        trained(model, step=probe.step)
    lines = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert sum('"t":"end"' in line for line in lines) == 1


def test_what_fsdp_computes_elsewhere_than_it_keeps_its_parameters_is_not_followed(tmp_path, capsys):
    elsewhere = torch.device("cuda", 0)
    sharded, wrapped = fully_shard(net()), FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    for group in param_groups(sharded):
        group.device = elsewhere
    wrapped.compute_device = elsewhere
    for model in (sharded, wrapped):
        with Probe(model, run_dir=tmp_path / "run"):
            pass
        assert "it spans several devices" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_forked_process_frees_no_event_of_the_parents_device(tmp_path):
    model = DistributedDataParallel(net())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        trained(model, step=probe.step)
        device = weakref.ref(probe._recording._device)
        child = os.fork()
        if child == 0:  # to collect there what other tests left would end it
            os._exit(device() is None or device() not in _devices_of_parent)
        assert os.waitpid(child, 0)[1] == 0
        trained(model, step=probe.step)


def test_an_odd_name_and_an_odd_batch_end_no_training(tmp_path, capsys):
    for number, given in enumerate(
        ({"name": 5}, {"name": "\udcff\x1b[31m"}, {"batch": "four"}, {"run_dir": "a\0b"})
    ):
        model = DistributedDataParallel(net())
        with Probe(model, **({"run_dir": tmp_path / str(number)} | given)) as probe:
            trained(model, step=probe.step)
    assert "\x1b" not in capsys.readouterr().err


def held(frame):
    return frame.f_locals


def by_itself(run_dir):
    model, rate = DistributedDataParallel(net()), 0.01
    known = locals()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with Probe(model, run_dir=run_dir) as probe:
        for _ in range(STEPS):
            with probe.step():
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
    return known


def by_another(run_dir):
    model, rate = DistributedDataParallel(net()), 0.01
    known = held(inspect.currentframe())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with Probe(model, run_dir=run_dir) as probe:
        for _ in range(STEPS):
            with probe.step():
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
    return known


@pytest.mark.parametrize("loop", [by_itself, by_another])
def test_what_a_loop_noted_of_its_own_variables_stays(loop, tmp_path):
    assert loop(tmp_path / "run")["rate"] == 0.01
    assert (tmp_path / "run/launches/0/rank-0.jsonl").exists()


def test_an_object_that_stands_for_another_is_not_asked_what_it_is(tmp_path):
    asked = []

    class Lazy:
        @property
        def __class__(self):
            asked.append(1)
            return int

    model, lazy = DistributedDataParallel(net()), Lazy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Probe(model, run_dir=tmp_path / "run") as probe:
        for _ in range(STEPS):
            with probe.step():
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
    assert not asked
    del lazy


class NamesItself(torch.nn.Linear):
    """Is called as a wrapper of a model is, with or without one."""

    @property
    def module(self):
        return self


class AnswersEverything(torch.nn.Linear):
    """Has an answer to every name that torch does not know."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("weight", "bias"):  # torch asks whether they are taken
                raise
            return "an answer"


class HasGroups(torch.nn.Linear):
    """Gives its optimizer groups in place of parameters."""

    def parameters(self, recurse=True):
        return [{"params": list(super().parameters(recurse))}]


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
@pytest.mark.parametrize("kind", [NamesItself, AnswersEverything, HasGroups])
def test_an_odd_model_trains_on(kind, found, tmp_path):
    def losses(probed):
        torch.manual_seed(0)
        model = kind(8, 2)
        optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.01)
        given = None if found else model
        with Probe(given, run_dir=tmp_path / "run") if probed else contextlib.nullcontext() as probe:
            for _ in range(STEPS):
                with probe.step() if probe else contextlib.nullcontext():
                    loss = model(torch.ones(4, 8)).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                yield loss.item()

    assert list(losses(True)) == list(losses(False))


class Counting(torch.optim.Adam):
    """Keeps a count of its own beside what it keeps of its parameters, as MADGRAD does."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.state["k"] = torch.tensor([0])


def test_an_optimizer_that_keeps_no_mapping_alone_is_recorded(tmp_path):
    model = DistributedDataParallel(net())
    optimizer = Counting(model.parameters())
    with Probe(model, run_dir=tmp_path / "run") as probe:
        for index in range(2 + STEPS):
            with probe.step() if index > 1 else contextlib.nullcontext():
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
    head = json.loads((tmp_path / "run/launches/0/rank-0.jsonl").open().readline())
    assert head["steps_before"] == 2


@pytest.mark.slow  # some hundred trainings
def test_whatever_call_of_the_probe_fails_the_training_is_the_same(tmp_path):
    (told,) = run_ranks(
        Path(__file__).with_name("faulty.py"), 1, tmp_path / "store", tmp_path / "runs", SHARE
    )
    for kind in ("ddp", "fsdp", "found"):
        assert told[kind]["equal"]
        assert told[kind]["recorded"]
        assert told[kind]["places"] > 400
        assert min(told[kind]["faults"], told[kind]["signals"]) > 0.8 * told[kind]["places"] / SHARE
        assert told[kind]["otherwise"] == []


SHARE = 12
"""Of all calls, every so many-th is made to fail; `faulty.py 0 - FOLDER 1` tries all of them."""
