"""A step that cannot be counted, or that raises, costs the roofline and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scaling.config.compose import requests
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.checks.checkup import Checkup
from scaling.worker.checks.kernels import note_step
from scaling.worker.checks.steps import Bench
from scaling.worker.data.workload import Workload, sgd

LOCAL = ("model=mlp", "topology=local", "topology.device=cpu", "topology.ranks_per_host=1", "world_sizes=[1]")


@pytest.fixture
def plan():
    (asked,) = requests("run", list(LOCAL)).items
    return make_plan(asked.spec, run_id="run", created="", version="")


def raising(error):
    """A workload whose loss does, once there are gradients to be left behind."""

    def loss(outputs, _targets):
        outputs.sum().backward()
        raise error

    return Workload(
        module=torch.nn.Linear(4, 4),
        make_batch=lambda n, g: (torch.randn(n, 4, generator=g), torch.zeros(n, 4)),
        loss=loss,
        optimizer=sgd,
    )


def rank_of(plan, folder):
    return SimpleNamespace(plan=plan, folder=folder, device=Cpu(), rank=0)


@pytest.mark.parametrize("error", [AssertionError(), ValueError("a tensor of ours"), KeyError("mode")])
def test_the_run_goes_on_without_a_roofline(plan, tmp_path, capsys, error):
    folder, workload = RunFolder(tmp_path).launch(0), raising(error)
    note_step(rank_of(plan, folder), workload, Precision("fp32", "cpu"))
    told = capsys.readouterr().out
    assert f"no roofline: {type(error).__name__}: " in told
    assert f"no kernel times: {type(error).__name__}: " in told
    assert not folder.roofline(0).exists()
    assert not folder.kernels(0).exists()
    assert all(p.grad is None for p in workload.module.parameters())


def test_the_doctor_notes_what_the_step_raised(plan):
    noted = {}
    doctor = SimpleNamespace(
        _session=rank_of(plan, None), _device=Cpu(), _trial=plan.trials[0], _note=noted.update
    )
    Checkup._model(doctor, raising(AssertionError("no such mode")), Precision("fp32", "cpu"))
    assert noted["model_error"] == "AssertionError: no such mode (parameters on cpu)"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_fetches_the_batches_of_all_its_micro_steps(plan, steps):
    plan = replace(plan, spec=replace(plan.spec, accumulation_steps=steps))
    workload = Workload(
        module=torch.nn.Linear(4, 4),
        make_batch=lambda n, g: (torch.randn(n, 4, generator=g), torch.zeros(n, 4)),
        loss=torch.nn.functional.mse_loss,
        optimizer=sgd,
    )
    work = Bench(plan, plan.trials[0], workload, Cpu(), Precision("fp32", "cpu"), 0).work()
    assert work.input_bytes == plan.trials[0].batch * 8 * 4
