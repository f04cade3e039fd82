"""The table of a step's operators: calls, shapes and work of each, and what a synthetic model sleeps beside them."""

from dataclasses import replace

import pytest
import torch
from support.results import plan, spec
from support.workloads import towards_zero

from scaling.worker.accelerator import clock
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.checks.kernels import measure
from scaling.worker.checks.steps import Bench
from scaling.worker.models.synthetic import build

STEP_NS = 40_000_000


def measured(workload, batch):
    a_plan = plan(spec())
    bench = Bench(a_plan, a_plan.trials[0], workload, Cpu(), Precision("fp32", "cpu"), 0)
    return measure(bench.loop(batch)[0], Cpu(), batch=batch, precision="fp32")


def linear(features=32, outputs=16):
    def make_batch(samples, _generator):
        return torch.ones(samples, features), torch.zeros(samples, outputs)

    return towards_zero(torch.nn.Linear(features, outputs), make_batch=make_batch)


def test_each_operator_has_its_shapes_its_calls_and_its_work():
    found = {kernel.key: kernel for kernel in measured(linear(), 8).kernels}
    forward = found["aten::addmm|Float 16;Float 8,32;Float 32,16"]
    assert (forward.calls, forward.flops) == (1, 2 * 8 * 32 * 16)
    backward = found["aten::mm|Float 16,8;Float 8,32"]
    assert (backward.calls, backward.flops) == (1, 2 * 16 * 8 * 32)


def test_each_operator_has_its_layer_in_both_directions_and_one_in_place_is_timed_too():
    workload = linear()
    module = torch.nn.Sequential(workload.module, torch.nn.ReLU(), torch.nn.Linear(16, 16))
    found = measured(
        replace(workload, module=module, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)), 8
    )
    layers = {kernel.key: (kernel.layer, kernel.layers) for kernel in found.kernels}
    assert layers["aten::addmm|Float 16;Float 8,32;Float 32,16"] == ("0", 1)
    assert layers["aten::threshold_backward|Float 8,16;Float 8,16"] == ("1", 1)
    assert layers["aten::mm|Float 16,8;Float 8,32"] == ("0", 1)
    (update,) = [kernel for kernel in found.kernels if kernel.operator == "aten::_foreach_add"]
    assert (update.layer, update.calls) == ("", 1)


@pytest.fixture
def virtual(monkeypatch):
    """A clock that only sleeping moves on."""
    now = [0]
    monkeypatch.setattr(clock._Host, "read_ns", staticmethod(lambda: now[0]))
    monkeypatch.setattr(
        clock._Host, "sleep_s", staticmethod(lambda s: now.__setitem__(0, now[0] + round(s * 1e9)))
    )


@pytest.mark.usefixtures("virtual")
def test_what_a_synthetic_model_sleeps_is_beside_its_operators():
    found = measured(build(1, 4, STEP_NS / 1e6, 32), 32)
    assert found.slept_ns == found.step_ns == pytest.approx(STEP_NS, rel=1e-6)
    assert found.sum_ns == 0
    assert all("sleep" not in kernel.operator for kernel in found.kernels)
