"""Ceilings of computing: both kinds, in bounded time, whatever the format costs."""

import pytest
import torch

from scaling.records.checkup import CONVOLUTION, MATMUL
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks import ceilings


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(ceilings, "_SIDES", {"cpu": (16, 32)})
    monkeypatch.setattr(ceilings, "_CONVOLUTIONS", {"cpu": ((1, 4, 8, 3), (2, 4, 8, 3))})
    monkeypatch.setattr(ceilings, "REPEAT_NS", 100_000)
    monkeypatch.setattr(ceilings, "RAMP_NS", 1_000_000)
    monkeypatch.setattr(ceilings, "LOAD_NS", 20_000_000)


def kernel(size, flops, call=lambda: None):
    return ceilings._Kernel(size=size, flops=flops, call=call)


def test_the_best_repetition_of_each_kind_counts():
    found = {c.name: c for c in ceilings._computing(Cpu(), "fp32", ceilings.KINDS)}
    assert set(found) == {MATMUL + "fp32", CONVOLUTION + "fp32"}
    assert all(c.unit == "FLOP/s" and c.best > 0 and c.repeats >= 1 for c in found.values())
    assert found[MATMUL + "fp32"].size in (16, 32)
    assert found[CONVOLUTION + "fp32"].size == 4
    assert [c.name for c in ceilings._computing(Cpu(), "fp32", [MATMUL])] == [MATMUL + "fp32"]


def test_what_came_before_the_ramp_does_not_count(monkeypatch):
    took = iter([100, 100, 1, 1, 50, 20])  # ns: both calibrated, both while clocks are high, both after

    def timed(_device, _work, calls):
        now[0] += 500_000
        return next(took) * calls

    now = [0]
    monkeypatch.setattr(ceilings, "REPEAT_NS", 10)
    monkeypatch.setattr(ceilings, "RAMP_NS", 2_000_000)
    monkeypatch.setattr(ceilings, "LOAD_NS", 950_000)
    monkeypatch.setattr(ceilings, "now_ns", lambda: now[0])
    monkeypatch.setattr(ceilings, "_timed", timed)
    found = ceilings._under_load(Cpu(), {"first": iter([kernel(1, 100)]), "other": iter([kernel(2, 100)])})
    assert [(c.name, c.size, c.best) for c in found] == [
        ("first", 1, pytest.approx(100 / 50e-9)),
        ("other", 2, pytest.approx(100 / 20e-9)),
    ]


def test_a_kernel_that_would_take_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(ceilings, "_timed", lambda _device, _work, calls: 10_000_000 * calls)
    called = []
    kernels = (
        kernel(size, flops, lambda size=size: called.append(size)) for size, flops in ((1, 10**6), (2, 10**7))
    )
    assert [k.size for k, _ in ceilings._ready(Cpu(), kernels)] == [1]
    assert called == [1]


def failing(said):
    raise RuntimeError(said)
    yield


def test_a_format_that_torch_does_not_have_is_left_out():
    assert ceilings._ready(Cpu(), failing("\"addmm\" not implemented for 'Half'")) == []
    with pytest.raises(RuntimeError, match="something else"):
        ceilings._ready(Cpu(), failing("something else"))


def test_the_switches_are_as_before():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    ceilings._computing(Cpu(), "tf32", ceilings.KINDS)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
