"""A rank's part of a divided step, timed and counted in one process, is what real ranks send."""

from __future__ import annotations

import pytest

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks.divided import time_divided
from scaling.worker.models import language, mlp

ASKED = ("topology=local", "topology.ranks_per_host=4", "topology.device=cpu", "world_sizes=[1,2,4]")
ROWS = 4 * 16 * 64
"""Bytes of a sample's activations between layers: 16 tokens of 64 numbers."""


def spec(*overrides):
    (request,) = requests("run", [*ASKED, "model=gpt2", *overrides]).items
    return request.spec


def model():
    return language.gpt2(64, 2, 4, 97, 32, 16)


def test_what_divided_layers_send_is_counted_at_every_degree():
    """Two layers with two sums each, forward and backward: 8 all-reduces of the activations."""
    found = time_divided(spec("parallel=tp"), model(), Cpu(), 3, 1.0)
    assert [one.tensor for one in found] == [2, 4]
    assert [one.calls for one in found] == [8, 8]
    assert [one.bytes_a_sample for one in found] == [8 * ROWS * 2 * (n - 1) / n for n in (2, 4)]
    assert all(one.share > 0 for one in found)


def test_with_sequence_parallel_gathers_and_scatters_are_counted():
    (found,) = time_divided(
        spec("parallel=tp", "parallel.sequence=true", "world_sizes=[1,2]"), model(), Cpu(), 3, 1.0
    )
    norms = 8 * 4 * 64 * 2  # gradients of four norms, summed over ranks: not of a sample
    assert found.calls == 18 + 8
    assert found.bytes_a_sample == pytest.approx((18 * ROWS + norms / 3) / 2)


def test_only_degrees_of_the_mesh_are_timed():
    (found,) = time_divided(spec("parallel=fsdp_tp"), model(), Cpu(), 2, 1.0)
    assert found.tensor == 2


def test_what_cannot_be_divided_is_refused_before_a_launch():
    with pytest.raises(InputError, match=r"parallel\.tensor=4: does not divide"):
        time_divided(spec("parallel=tp"), mlp.build(32, 66, 3, 10), Cpu(), 2, 1.0)
