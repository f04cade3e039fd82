"""Real steps on this CPU: equal builds give equal bits, and each thing that is wrong shows where it is.

Sums that stand for a tensor's bytes, so that a GPU's need not be copied to the host.
"""

from __future__ import annotations

import gc

import pytest
import torch
from support.workloads import towards_zero
from torch import nn

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks import parity
from scaling.worker.checks.parity import Parity, sums

FORMATS = ("fp32", "bf16")


def factory(*layers):
    def build():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(32, 64), *[make() for make in layers], nn.Linear(64, 8))
        return towards_zero(
            module,
            make_batch=lambda n, g: (torch.randn(n, 32, generator=g), torch.randint(8, (n,), generator=g)),
            loss=nn.functional.cross_entropy,
        )

    return build


def records(*layers, formats=FORMATS):
    parity = Parity(factory(*layers), Cpu(), seed=0, batch=8)
    return {record.precision: record for record in parity.record(formats)}


class Act(nn.Module):
    """Does something to what passes through."""

    def __init__(self, do) -> None:
        super().__init__()
        self.do = do

    def forward(self, x):
        return self.do(x)


@pytest.fixture(scope="module")
def healthy():
    return records(nn.ReLU)


def test_every_precision_against_float64(healthy):
    assert list(healthy) == ["fp64", "fp32", "bf16"]
    errors = {name: record.steps[0].gradient_error for name, record in healthy.items()}
    assert errors["fp64"] == 0
    assert 1e-9 < errors["fp32"] < 1e-5 < errors["bf16"] < 0.2
    assert [la.name for la in healthy["fp32"].layers] == ["0", "1", "2"]
    assert all(not record.repeat_parted for record in healthy.values())


def test_two_equal_ranks_are_equal_bit_for_bit(healthy):
    again = records(nn.ReLU)
    for name in healthy:
        assert healthy[name].layers == again[name].layers
        assert healthy[name].gradients == again[name].gradients
        assert healthy[name].steps == again[name].steps


def test_a_wrong_layer_is_where_the_outputs_part(healthy):
    wrong = records(lambda: Act(lambda x: x.relu() * 1.01))
    parted = [a.digest != b.digest for a, b in zip(healthy["fp32"].layers, wrong["fp32"].layers, strict=True)]
    assert parted == [False, True, True]


def test_what_goes_wrong_in_bf16_only():
    found = records(lambda: Act(lambda x: x + (x.dtype == torch.bfloat16)))
    assert found["fp32"].layers[1].error < 1e-5
    assert found["bf16"].layers[0].error < 0.05
    assert found["bf16"].layers[1].error > 0.5


def test_a_layer_that_draws_anew_each_time_does_not_repeat():
    noise = torch.Generator().manual_seed(3)
    found = records(lambda: Act(lambda x: x + torch.rand(x.shape, generator=noise)), formats=("fp32",))
    assert found["fp32"].repeat_parted == "1"


def test_dropout_is_seeded_and_repeats():
    found = records(nn.Dropout, formats=("fp32",))
    assert found["fp32"].repeat_parted == ""


def test_fp16_overflows_where_bf16_does_not():
    found = records(lambda: Act(lambda x: x * 30000 * 30000 / 9e8), formats=("bf16", "fp16"))
    assert found["bf16"].layers[1].not_finite == 0
    assert found["fp16"].layers[1].not_finite > 0
    assert found["fp16"].scale == 0
    assert found["fp16"].layers[0].not_finite == 0


def no_room_for(dtype):
    """Memory that runs out as soon as something of a format passes."""

    def do(x):
        if x.dtype == dtype:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return x

    return lambda: Act(do)


def test_a_format_that_memory_does_not_suffice_for_is_left_out():
    parity = Parity(factory(no_room_for(torch.bfloat16)), Cpu(), seed=0, batch=8)
    assert [record.precision for record in parity.record(("bf16", "fp32"))] == ["fp64", "fp32"]
    assert parity.left_out == {"bf16": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."}


@pytest.mark.slow
def test_without_float64_bits_are_still_compared_and_distances_are_not():
    parity = Parity(factory(no_room_for(torch.float64)), Cpu(), seed=0, batch=8)
    (found,) = parity.record(("fp32",))
    whole = records(lambda: Act(lambda x: x), formats=("fp32",))["fp32"]
    assert list(parity.left_out) == ["fp64"]
    assert [la.digest for la in found.layers] == [la.digest for la in whole.layers]
    assert [step.digest for step in found.steps] == [step.digest for step in whole.steps]
    assert {la.error for la in found.layers} == {step.gradient_error for step in found.steps} == {None}
    assert (found.steps[0].loss_error, found.repeat_parted) == (None, "")


def test_no_tensor_of_a_run_outlives_it():
    """Copies of gradients and weights step by step would take several times the model's memory."""
    large = 300 * 300

    def build():
        torch.manual_seed(0)
        return towards_zero(nn.Linear(300, 300), 300)

    parity = Parity(build, Cpu(), seed=0, batch=8)
    next(parity.record(("fp32",)))
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
    assert not [t for t in tensors if t.dtype == torch.float64 and t.untyped_storage().nbytes() >= 8 * large]


def test_a_healthy_fp16_finds_its_loss_scale():
    found = records(nn.ReLU, formats=("fp16",))
    assert found["fp16"].scale >= 256


class OwnGenerator(Cpu):
    """As CUDA: what is drawn on the device comes from its own generator."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()

    def random_state(self):
        return (*super().random_state(), self.generator.get_state())

    def set_random_state(self, states):
        super().set_random_state(states)
        self.generator.set_state(states[1])


@pytest.mark.slow
def test_the_search_for_a_loss_scale_leaves_a_device_s_dropout_where_it_was():
    device = OwnGenerator()

    def drop(x):
        return x * (torch.rand(x.shape, generator=device.generator) > 0.5)

    whole = factory(lambda: Act(drop))

    def build():
        device.generator.manual_seed(0)  # torch.manual_seed does this to every CUDA generator
        return whole()

    found = {r.precision: r for r in Parity(build, device, seed=0, batch=8).record(("fp32", "fp16"))}
    assert found["fp32"].layers[1].error < 1e-5
    assert found["fp16"].layers[1].error < 0.01  # the same masks as float64's
    assert found["fp16"].steps[0].gradient_error < 0.01


def test_a_flag_that_one_rank_sets_shows_in_the_bits(healthy):
    layer, rows = nn.Linear(32, 64), torch.randn(8, 32)
    torch.set_float32_matmul_precision("medium")
    try:
        product = layer(rows)
        other = records(nn.ReLU)
    finally:
        torch.set_float32_matmul_precision("highest")
    if (product - layer.double()(rows.double())).abs().max() < 64 * 2**-23:
        pytest.skip("this processor multiplies float32 as float32 whatever is asked for")
    assert other["fp32"].layers[0].digest != healthy["fp32"].layers[0].digest
    assert other["fp64"].layers[0].digest == healthy["fp64"].layers[0].digest
    assert other["fp32"].layers[0].error > 64 * 2**-23


TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(parity, "CHUNK", 16)


def some(dtype, count=50):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(count, generator=generator) * 10).to(dtype)


def flipped(tensor, place):
    """The tensor with the lowest bit of one element changed."""
    found = tensor.clone()
    found.view(parity._INTEGERS[tensor.element_size()])[place] ^= 1
    return found


@pytest.mark.parametrize("dtype", TYPES)
def test_any_bit_counts_and_only_bits(dtype):
    tensor = some(dtype)
    assert sums(tensor) == sums(tensor.clone())
    assert len(sums(tensor)) == 4
    others = [sums(flipped(tensor, place)) for place in range(len(tensor))]
    assert sums(tensor) not in others
    assert len({tuple(other) for other in others}) == len(others)


def test_the_sum_is_that_of_whole_numbers_modulo_2_to_the_64():
    bits = some(torch.float64, 16).view(torch.int64)
    weights = parity._weights(16, bits.device)
    whole = sum(int(b) * int(w) for b, w in zip(bits, weights, strict=True)) % 2**64
    assert [found % 2**64 for found in sums(bits)] == [whole]
    assert all(int(weight) % 2 for weight in weights)


def test_exchanged_elements_and_chunks_show():
    tensor = some(torch.float32, 48)
    assert sums(tensor.flip(0)) != sums(tensor)
    assert sums(tensor.view(3, 16).roll(1, 0)) != sums(tensor)


def test_parts_that_do_not_lie_together_and_complex_numbers():
    table = some(torch.float32, 48).view(6, 8)
    assert sums(table.T) == sums(table.T.contiguous()) != sums(table)
    pairs = torch.complex(some(torch.float32), some(torch.float32).flip(0))
    assert sums(pairs) == sums(torch.view_as_real(pairs))
    assert sums(torch.empty(0)) == []
