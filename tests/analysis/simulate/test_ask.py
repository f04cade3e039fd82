"""Meshes of strategies, and what the latest of n ranks adds."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.simulate.ask import latest, mesh_of
from scaling.errors import InputError


@pytest.mark.parametrize(
    ("strategy", "world", "asked", "degrees"),
    [
        ("ddp", 16, {}, (16, 1, 1)),
        ("fsdp", 16, {}, (1, 16, 1)),
        ("hsdp", 64, {}, (8, 8, 1)),
        ("hsdp", 64, {"shard": 16}, (4, 16, 1)),
        ("tp", 8, {}, (1, 1, 8)),
        ("fsdp_tp", 64, {}, (1, 8, 8)),
        ("fsdp_tp", 64, {"tensor": 4}, (1, 16, 4)),
        ("hsdp_tp", 64, {"tensor": 4, "shard": 4}, (4, 4, 4)),
        ("fsdp", 1, {}, (1, 1, 1)),
    ],
)
def test_a_strategy_has_its_mesh_at_every_world_size(strategy, world, asked, degrees):
    mesh = mesh_of(strategy, world, 8, **asked)
    assert (mesh.replicate, mesh.shard, mesh.tensor) == degrees
    assert mesh.world_size == world


def test_neighbouring_ranks_share_the_innermost_axis():
    axes = mesh_of("hsdp_tp", 64, 8, tensor=4, shard=4).axes
    assert [(a.name, a.size, a.stride) for a in axes] == [
        ("replicate", 4, 16),
        ("shard", 4, 4),
        ("tensor", 4, 1),
    ]


@pytest.mark.parametrize(
    ("strategy", "asked"), [("fsdp", {"shard": 4}), ("tp", {"tensor": 4}), ("hsdp", {"shard": 3})]
)
def test_degrees_that_do_not_fit_are_refused(strategy, asked):
    with pytest.raises(InputError, match="are not 16 ranks"):
        mesh_of(strategy, 16, 8, **asked)


def test_the_latest_of_n_draws_is_as_late_as_drawn():
    drawn = np.random.default_rng(0).normal(size=(20_000, 64)).max(axis=1).mean()
    assert latest(64) == pytest.approx(drawn, rel=0.02)
    assert latest(1) == 0
