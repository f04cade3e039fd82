"""What a command line simulates, from words to results."""

import pytest

from scaling_simulator.simulate.simulations import simulations

pytestmark = pytest.mark.slow
SMALL = ("topology=simulated_hgx_h100", "model=synthetic")


def test_a_strong_batch_that_the_mesh_of_the_comparison_does_not_divide_is_simulated():
    """18 samples over 3 replicas of 3 ranks; ranks are compared on a mesh of 2 by 2."""
    (found,) = simulations(
        [*SMALL, "mode=strong", "global_batch=18", "world_sizes=[9]", "parallel=hsdp", "parallel.shard=3"]
    )
    (point,) = found.results.points
    assert (point.status, point.replicate, point.shard, point.batch) == ("simulated", 3, 3, 2)
    assert point.efficiency is not None
