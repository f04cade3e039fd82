"""Meshes that do not fit are bad input."""

import pytest

from scaling.errors import InputError
from scaling.settings.parallel import Parallel
from scaling_simulator.simulate.ask import mesh_of


def test_degrees_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"parallel=fsdp: .* does not fit world size 16"):
        mesh_of(Parallel(name="fsdp", replicate=1, shard=4), 16)
