"""A Probe that a script does not open itself: which model and optimizer it follows, and what it leaves."""

import gc
import importlib
import json
import subprocess
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.analysis.run import derive
from scaling.records.paths import RunFolder
from scaling.records.tables import in_memory
from scaling.worker.probe.hooked import Hooked

STEPS, EVALUATED = 45, 30
OPTIMIZERS = importlib.import_module("torch.optim.optimizer")


@pytest.fixture
def folder(one_rank, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALING_RUN_DIR", str(tmp_path / "run"))
    return RunFolder(tmp_path / "run")


def script(order=(0, 1)):
    """Two models, the first the larger one, trained in an order; an evaluation; two micro-steps of the larger one."""
    models = [DistributedDataParallel(torch.nn.Linear(8, width)) for width in (16, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for index in range(STEPS):
        for k in order:
            if k == 0:
                with models[k].no_sync():
                    models[k](torch.ones(3, 8)).sum().backward()
            models[k](torch.ones(3, 8)).sum().backward()
            optimizers[k].step()
            optimizers[k].zero_grad()
        if index == EVALUATED:
            with torch.no_grad():
                models[0](torch.ones(3, 8))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,)])
def test_it_follows_the_largest_model_from_one_optimizer_step_to_the_next(folder, order):
    before = len(OPTIMIZERS._global_optimizer_post_hooks)
    hooked = Hooked()
    with hooked.installed():
        script(order)
        hooked.close(None)
    assert len(OPTIMIZERS._global_optimizer_post_hooks) == before
    rebuilt, tables, *_ = derive(folder)
    assert rebuilt.plan.spec.batch_per_rank == 6  # both micro-steps
    assert rebuilt.plan.spec.accumulation_steps == 2
    assert rebuilt.analysis.points[0].parts_ms.optimizer.value > 0
    assert set(in_memory(tables.blocks)["arm"]) == {"plain", "probe"}
    assert [(p.kind, p.count) for p in rebuilt.analysis.points[0].pauses] == [("evaluation", 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_an_optimizer_that_is_made_anew_ends_steps_as_the_one_before_did(folder, count):
    hooked, epochs = Hooked(), 3
    with hooked.installed():
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)))
        for _ in range(epochs):
            optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in model.module[-count:]]
            for _ in range(STEPS):
                model(torch.ones(3, 8)).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        hooked.close(None)
    lines = (folder.path / "launches/0/rank-0.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["steps"] == epochs * STEPS - 2  # those before the models are chosen
    assert derive(folder)[0].analysis.points[0].parts_ms.optimizer.value > 0


@pytest.mark.slow  # torch.compile is slow to import
@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_wrapper_is_followed_and_one_that_is_compiled_in_place_trains_on(folder, capsys, inside):
    hooked = Hooked()
    with hooked.installed():
        ddp = DistributedDataParallel(torch.nn.Linear(8, 16))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        called = ddp if inside else torch.compile(ddp, backend="eager")
        if inside:
            ddp.compile(backend="eager")
        for _ in range(STEPS):
            called(torch.ones(3, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        hooked.close(None)
    if inside:
        assert "nothing was recorded" in capsys.readouterr().err
    else:
        assert derive(folder)[0].analysis.points[0].parts_ms.forward.value > 0


def test_a_training_of_a_few_steps_is_told_that_it_is_too_short(folder, capsys):
    hooked = Hooked()
    with hooked.installed():
        ddp = DistributedDataParallel(torch.nn.Linear(8, 16))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        for _ in range(3):
            ddp(torch.ones(3, 8)).sum().backward()
            optimizer.step()
        hooked.close(None)
    said = capsys.readouterr().err
    assert "train for more steps" in said
    assert "probe.step()" not in said  # the script has no line of a Probe


def test_optimizers_are_as_they_were_if_the_script_ends_before_a_choice(folder):
    before, hooked = torch.optim.SGD.step.__code__, Hooked()
    with hooked.installed():
        for width in (2, 4):  # two models with one kind of optimizer
            model = torch.nn.Linear(8, width)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
        assert torch.optim.SGD.step.__code__ is not before
    assert torch.optim.SGD.step.__code__ is before


def test_of_a_training_of_one_step_it_says_so(folder, capsys):
    def train():
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()

    hooked = Hooked()
    with hooked.installed():
        train()
        gc.collect()
        hooked.close(None)
    assert "no training was seen: its optimizer stepped once" in capsys.readouterr().err


def test_without_a_model_it_says_so_and_leaves_nothing(folder, capsys):
    hooked = Hooked()
    with hooked.installed():
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
        optimizer.step()
        hooked.close(None)
    assert "no training was seen: its optimizer stepped never" in capsys.readouterr().err
    assert not folder.path.exists()


def test_it_follows_a_sharded_module_and_not_its_units(folder):
    hooked = Hooked()
    with hooked.installed():
        from torch.distributed.fsdp import fully_shard  # as a script does

        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        hooked.close(None)
    rebuilt, tables, *_ = derive(folder)
    spec = rebuilt.plan.spec
    assert (spec.model.name, spec.parallel.name, spec.batch_per_rank) == ("Sequential", "fsdp", 3)
    assert rebuilt.analysis.points[0].parts_ms.forward.value > 0
    assert set(in_memory(tables.blocks)["arm"]) == {"plain", "probe"}


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("def f():\n    raise ValueError('mine')\n\nf()\n", [4, 2]),
        ("x = (\n", [1]),
        ("import json\njson.loads('{')\n", [2]),
    ],
)
def test_a_failing_script_ends_in_its_own_frames(tmp_path, text, frames):
    """As if it had been started itself: its traceback begins with its own first line."""
    script = tmp_path / "train.py"
    script.write_text(text)
    by_hook, alone = (
        subprocess.run([sys.executable, *how, str(script)], capture_output=True, text=True, check=False)
        for how in (["-m", "scaling.worker.probe.hooked"], [])
    )
    assert by_hook.returncode == alone.returncode == 1
    said = (
        by_hook.stderr[by_hook.stderr.find("Traceback") :]
        if "Traceback" in by_hook.stderr
        else by_hook.stderr
    )
    assert said == alone.stderr
    own = [line for line in said.splitlines() if str(script) in line]
    assert [int(line.partition("line ")[2].partition(",")[0]) for line in own] == frames


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_a_thread_that_outlives_the_script_saves_its_model(tmp_path, end):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, threading, time, torch\n"
        "class Own(torch.nn.Linear): ...\n"
        "def save():\n"
        "    threading.main_thread().join()\n"
        "    torch.save(Own(2, 2), 'model.pt')\n"
        f"threading.Thread(target=save).start()\n{end}\n"
    )
    command = [sys.executable, "-m", "scaling.worker.probe.hooked", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "PicklingError" not in done.stderr
    assert (tmp_path / "model.pt").stat().st_size > 1000
