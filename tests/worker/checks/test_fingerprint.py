"""Sums that stand for a tensor's bytes, so that a GPU's need not be copied to the host."""

from __future__ import annotations

import pytest
import torch

from scaling.worker.checks import parity
from scaling.worker.checks.parity import sums

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
