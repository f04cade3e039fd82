"""A step that cannot be counted, or that raises, costs the roofline and nothing else."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.workloads import towards_zero

from scaling.config.compose import requests
from scaling.records.checkup import SCHEMA, Roofline
from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.checks import ceilings
from scaling.worker.checks.checkup import Checkup
from scaling.worker.checks.kernels import note_step
from scaling.worker.checks.steps import Bench

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

    return towards_zero(torch.nn.Linear(4, 4), 4, loss=loss)


def rank_of(plan, folder):
    return SimpleNamespace(plan=plan, folder=folder, device=Cpu(), rank=0, lead=True)


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


@pytest.mark.parametrize(
    ("layer", "shape", "kinds"),
    [
        (torch.nn.Linear(4, 4), (4,), ["matmul_fp32"]),
        (torch.nn.Conv1d(4, 4, 1), (4, 4), ["matmul_fp32", "convolution_fp32"]),
    ],
)
def test_convolutions_are_measured_where_a_step_has_one(plan, tmp_path, monkeypatch, layer, shape, kinds):
    workload = towards_zero(layer, *shape)
    monkeypatch.setattr(ceilings, "LOAD_NS", 10_000_000)
    monkeypatch.setattr(ceilings, "_COPIES", {"cpu": (2**20,)})
    folder = RunFolder(tmp_path).launch(0)
    Path(folder.path).mkdir(parents=True)
    note_step(rank_of(plan, folder), workload, Precision("fp32", "cpu"))
    line = read_json(folder.roofline(0), Roofline, SCHEMA)
    assert [c.name for c in line.ceilings if c.unit == "FLOP/s"] == kinds


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
    workload = towards_zero(torch.nn.Linear(4, 4), 4)
    work = Bench(plan, plan.trials[0], workload, Cpu(), Precision("fp32", "cpu"), 0).work()
    assert work.input_bytes == plan.trials[0].batch * 8 * 4
