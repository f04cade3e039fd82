"""What each precision switches on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.accelerator.cuda import cudnn_tf32, matmul_tf32
from scaling.worker.checks import ceilings
from scaling.worker.checks.facts import facts
from scaling.worker.probe.loop_file import _tf32


@pytest.fixture(autouse=True)
def keep_flags():
    """The old switches set the new ones too, so that both say the same again."""
    flags = matmul_tf32(), cudnn_tf32()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


@pytest.mark.parametrize(("name", "on"), [("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)])
def test_tf32_is_said_either_way(name, on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not on
    Precision(name, "cpu")
    assert torch.backends.cuda.matmul.allow_tf32 is on
    assert torch.backends.cudnn.allow_tf32 is on


@pytest.fixture
def new_switches():
    """Sets torch's newer switches of matrix products and convolutions."""
    matmul, convolution = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has the old switches only")
    kept = matmul.fp32_precision, convolution.fp32_precision

    def turn(to):
        matmul.fp32_precision = convolution.fp32_precision = to

    yield turn
    matmul.fp32_precision, convolution.fp32_precision = kept


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_known_whichever_switch_was_set(new_switches, on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    assert (matmul_tf32(), cudnn_tf32()) == (on, on)
    new_switches("ieee" if on else "tf32")
    with pytest.raises(RuntimeError, match="mix of the legacy and new"):
        _ = torch.backends.cuda.matmul.allow_tf32
    assert (matmul_tf32(), cudnn_tf32()) == (not on, not on)


def test_a_torch_without_the_newer_switches_is_asked_by_the_old_ones(monkeypatch):
    old = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", old)
    monkeypatch.setattr(torch.backends, "cudnn", old)
    assert (matmul_tf32(), cudnn_tf32()) == (True, True)
    old.allow_tf32 = False
    assert (matmul_tf32(), cudnn_tf32()) == (False, False)


def test_what_is_written_down_follows_the_newer_switches(new_switches):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    new_switches("tf32")
    found = facts(Cpu())
    assert (found["flags.cuda_matmul_tf32"], found["flags.cudnn_tf32"]) == (True, True)
    assert (_tf32("fp32", "cuda"), _tf32("bf16", "cuda"), _tf32("fp32", "cpu")) == ("tf32", "bf16", "fp32")


def test_a_ceiling_is_measured_whichever_switch_was_set(new_switches, monkeypatch):
    monkeypatch.setattr(ceilings, "_SIDES", {"cpu": (16,)})
    monkeypatch.setattr(ceilings, "LOAD_NS", 10_000_000)
    monkeypatch.setattr(ceilings, "RAMP_NS", 0)
    torch.backends.cuda.matmul.allow_tf32 = False
    new_switches("tf32")
    assert all(found.best > 0 for found in ceilings._computing(Cpu(), "fp32"))
    assert matmul_tf32()


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_autocast_decides_what_a_matrix_product_gives(name, dtype):
    with Precision(name, "cpu").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_fp16_scales_and_the_others_do_not():
    loss = torch.ones((), requires_grad=True) * 2
    assert Precision("fp32", "cpu").scaler().scale(loss) is loss
    scaler = Precision("fp16", "cpu").scaler()
    assert scaler.scale(loss) > 1000 * loss


def test_fp16_skips_a_step_that_overflowed_and_goes_on_with_less():
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = Precision("fp16", "cpu").scaler()
    scaler.scale(weight * float("inf")).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert weight == 1
    assert scaler.get_scale() < before


def test_each_loop_has_a_scaler_of_its_own():
    precision = Precision("fp16", "cpu")
    assert precision.scaler() is not precision.scaler()
