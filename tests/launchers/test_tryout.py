"""A model is tried with two samples on the run's own device; what shows nothing of the run refuses nothing."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from support.commands import start_python
from support.processes import wait_until
from torch.distributed.fsdp import FSDPModule

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers import tryout
from scaling.launchers.jobs import plan_request
from scaling.launchers.tryout import needs_trying, time_model, try_model
from scaling.settings.estimate import Machine
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks.tryout import run_step

pytestmark = pytest.mark.slow  # each tries in a process that imports torch

MINE = """
import time
import torch
from scaling import Workload


class Picky(torch.nn.Linear):
    def forward(self, x):
        if x.device.type == "cpu":
            raise RuntimeError("no kernel for a CPU")
        return super().forward(x)


def factory(layer=torch.nn.Linear, seconds=0.0):
    def make_batch(n, generator):
        assert n <= 2, f"{n} samples"
        time.sleep(seconds)
        return torch.randn(n, 8, generator=generator), torch.randn(n, 8, generator=generator)

    return Workload(
        module=layer(8, 8),
        make_batch=make_batch,
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )


def picky():
    return factory(Picky)
"""


@pytest.fixture
def plan_of(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def plan(target, *overrides):
        own = ("model=custom", f"model._target_=mine.{target}", "batch_per_rank=64")
        return plan_request(requests("plan", [*own, *overrides]).items[0])

    return plan


LOCAL = ("topology=local", "topology.device=cpu", "topology.ranks_per_host=1")
CLUSTER = ("topology=local", "launcher=slurm", "topology.ranks_per_host=1", "topology.device=cuda")


def test_two_samples_are_enough(plan_of, capsys):
    try_model(plan_of("factory", *LOCAL))
    assert capsys.readouterr().err == ""


def test_a_model_that_fails_where_it_is_to_run_is_refused(plan_of):
    with pytest.raises(InputError, match=r"one forward failed: RuntimeError: no kernel for a CPU"):
        try_model(plan_of("picky", *LOCAL))


def test_a_model_that_a_cpu_cannot_run_is_not_refused_where_the_devices_are_elsewhere(plan_of, capsys):
    try_model(plan_of("picky", *CLUSTER))
    assert "no kernel for a CPU (tried on a CPU; the run goes on" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_refused_everywhere(plan_of):
    with pytest.raises(InputError, match="missing"):
        try_model(plan_of("missing", *CLUSTER))


def test_a_slow_step_is_no_failure(plan_of, capsys, monkeypatch):
    monkeypatch.setattr(tryout, "TRY_S", 0.2)
    try_model(plan_of("factory", *LOCAL, "+model.args.seconds=60"))
    assert "a step of two samples was not done within 0 s; the run goes on" in capsys.readouterr().err


HANGS = """
import os, subprocess, time
from pathlib import Path

def factory():
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("pids").write_text(f"{os.getpid()} {worker.pid}\\n")
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_model_that_hangs_ends_with_the_program_that_tries_it(tmp_path, number):
    (tmp_path / "hangs.py").write_text(HANGS)
    asked = ("model=custom", "model._target_=hangs.factory", *LOCAL, "world_sizes=[1]")
    driver = start_python("-m", "scaling.cli", "plan", "--time", *asked, cwd=tmp_path)
    noted = tmp_path / "pids"
    wait_until(lambda: noted.read_text().endswith("\n"), driver)
    pids = [int(pid) for pid in noted.read_text().split()]
    try:
        driver.send_signal(number)
        driver.communicate(timeout=60)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), seconds=30)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert driver.returncode == (3 if number == signal.SIGTERM else -number)


def test_what_this_torch_cannot_do_is_refused_before_a_launch(monkeypatch):
    asked = (
        "model=mlp",
        *LOCAL,
        "world_sizes=[1]",
        "parallel=fsdp",
        "fsdp.separate_reduce_scatter_group=true",
    )
    spec = requests("plan", [*asked]).items[0].spec
    assert needs_trying(spec)
    monkeypatch.delattr(FSDPModule, "set_separate_reduce_scatter_group", raising=False)  # torch 2.11 has none
    with pytest.raises(InputError, match=r"^fsdp.separate_reduce_scatter_group=true: torch .* cannot"):
        run_step(spec, 2, Cpu())


def test_a_layer_that_cannot_be_divided_is_refused_before_a_launch():
    asked = (
        "model=mlp",
        "model.width=66",
        *LOCAL,
        "topology.ranks_per_host=4",
        "world_sizes=[4]",
        "parallel=tp",
    )
    with pytest.raises(InputError, match=r"parallel\.tensor=4: does not divide"):
        time_model(plan_request(requests("plan", [*asked]).items[0]), Machine(cores=2))
