"""What torch would send at a mesh that is not there, listed in one process."""

from __future__ import annotations

import dataclasses

import pytest

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers.listing import listing
from scaling.spec.listing import Listing

pytestmark = pytest.mark.slow  # each list is made by a process that imports torch
UNIT = 4 * 2**20


def asked(world_size, *words, host=False):
    spec = requests(
        "run",
        [
            "model=synthetic",
            "model.layers=2",
            "model.param_mb=8",
            "topology=local",
            "topology.device=cpu",
            f"topology.ranks_per_host={world_size}",
            f"world_sizes=[{world_size}]",
            *words,
        ],
    )
    spec = spec.items[0].spec
    return Listing(spec=spec, mesh=spec.parallel.mesh(world_size), host=host)


def shown(found):
    return [(one.kind, one.phase, one.unit, one.axis, one.ranks, one.bytes) for one in found.collectives]


def order(found):
    return " ".join(("w" if mark.waits else "l") + str(mark.collective) for mark in found.marks)


def test_hsdp_over_64_ranks():
    """Whole units within a copy's 8 ranks, and an eighth of them over the copies; a rank holds an eighth."""
    found = listing(asked(64, "parallel=hsdp", "parallel.shard=8"))
    assert shown(found) == [
        ("all_gather", "forward", 0, "shard", 8, UNIT),
        ("all_gather", "forward", 1, "shard", 8, UNIT),
        ("all_gather", "backward", 1, "shard", 8, UNIT),
        ("all_gather", "backward", 0, "shard", 8, UNIT),
        ("reduce_scatter", "backward", 1, "shard", 8, UNIT),
        ("all_reduce", "backward", 1, "replicate", 8, UNIT // 8),
        ("reduce_scatter", "backward", 0, "shard", 8, UNIT),
        ("all_reduce", "backward", 0, "replicate", 8, UNIT // 8),
    ]
    assert found.memory["parameters"] == found.memory["gradients"] == 2 * UNIT // 8
    assert found.memory["unsharded"] == 2 * UNIT


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (True, "l0 w0 l1 w1 l2 w2 l3 l4 w4 w3 l5 w5"),  # a reduce-scatter blocks the host
        (
            False,
            "l0 w0 l1 w1 l2 w2 l3 l4 w3 w4 l5 w5",
        ),  # on a device, where its buffer is used again, or backward ends
    ],
)
def test_where_fsdp_waits_depends_on_the_back_end(host, expected):
    found = listing(asked(2, "parallel=fsdp", host=host))
    assert order(found) == expected
    assert {one.ranks for one in found.collectives} == {2}


def test_what_is_kept_until_backward_is_gathered_once():
    found = listing(asked(4, "parallel=fsdp", "fsdp.reshard_after_forward=false"))
    assert [one.phase for one in found.collectives if one.kind == "all_gather"] == ["forward", "forward"]


def test_ddps_buckets_are_completed_by_the_units_of_their_gradients():
    """The first bucket is small, so each layer has one; all are waited for at the end of backward."""
    found = listing(asked(4, "parallel=ddp", host=True))
    assert shown(found) == [
        ("all_reduce", "backward", 1, "replicate", 4, UNIT),
        ("all_reduce", "backward", 0, "replicate", 4, UNIT),
    ]
    assert order(found) == "l0 l1 w1 w0"
    assert found.memory["parameters"] == 2 * UNIT


def test_divided_layers_send_what_their_samples_have():
    words = ("parallel=hsdp_tp", "parallel.shard=1", "model.activations=1000")
    made = dataclasses.replace(asked(4, *words, host=True), samples=32)
    sums = 32 * 1000 * 4
    found = shown(listing(made))
    layers = [one for one in found if one[3] == "tensor"]
    assert {(kind, ranks, size) for kind, _, _, _, ranks, size in layers} == {("all_reduce", 2, sums)}
    assert [phase for _, phase, *_ in layers] == ["forward", "forward", "backward", "backward"]
    copies = [one for one in found if one[3] == "replicate"]
    assert copies == [("all_reduce", "backward", unit, "replicate", 2, UNIT // 2) for unit in (1, 0)]


def test_a_program_that_fails_says_why():
    with pytest.raises(InputError, match=r"cannot be made: .*NoSuchBlock"):
        listing(asked(2, "parallel=fsdp", "fsdp.units=NoSuchBlock"))
