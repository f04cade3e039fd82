import pytest

from scaling.analysis.network.ring import bus_factor


def test_bus_factor_is_that_of_nccl_tests():
    assert (bus_factor(2), bus_factor(4), bus_factor(8)) == (1.0, 1.5, 1.75)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)],
)
def test_every_collective_has_its_own_bus_factor(collective, factor):
    assert bus_factor(4, collective) == factor
