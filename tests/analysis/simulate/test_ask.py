"""Meshes that do not fit are bad input, and what the latest of n ranks adds."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.simulate.ask import latest, mesh_of
from scaling.errors import InputError
from scaling.spec.parallel import Parallel


def test_degrees_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"parallel=fsdp: .* does not fit world size 16"):
        mesh_of(Parallel(name="fsdp", replicate=1, shard=4), 16)


def test_the_latest_of_n_draws_is_as_late_as_drawn():
    drawn = np.random.default_rng(0).normal(size=(20_000, 64)).max(axis=1).mean()
    assert latest(64) == pytest.approx(drawn, rel=0.02)
    assert latest(1) == 0
