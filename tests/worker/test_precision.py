"""What each precision switches on."""

from __future__ import annotations

import pytest
import torch

from scaling.worker.precision import Precision


@pytest.fixture(autouse=True)
def keep_flags():
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


@pytest.mark.parametrize(("name", "on"), [("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)])
def test_tf32_is_said_either_way(name, on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not on
    Precision(name, "cpu")
    assert torch.backends.cuda.matmul.allow_tf32 is on
    assert torch.backends.cudnn.allow_tf32 is on


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
