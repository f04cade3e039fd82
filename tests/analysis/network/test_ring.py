"""A ring over levels of links, by hand."""

import numpy as np
import pytest

from scaling.analysis.network.curve import Hops, NoPathError, PerHop, ring_times
from scaling.analysis.network.links import bus_factor


def hops(name, ranks, alpha, beta):
    return Hops(
        name=name, ranks=ranks, alpha=PerHop(sizes=(1,), values=np.array([[alpha]])), beta_ns=np.array([beta])
    )


INSIDE, NETWORK = hops("nvlink", 4, 10.0, 1.0), hops("network", None, 100.0, 5.0)


def time(levels, world_size, size):
    latency, rest = ring_times(levels, world_size, [size])
    return latency.item(), rest.item()


def test_one_level_is_the_textbooks_ring():
    assert time([NETWORK], 4, 1000) == (2 * 3 * 100, 2 * 3 / 4 * 1000 * 5)


def test_within_a_host_the_network_does_not_matter():
    assert time([INSIDE, NETWORK], 4, 1000) == (2 * 3 * 10, 2 * 3 / 4 * 1000 * 1)


def test_between_hosts_a_chunk_passes_every_edge_and_the_slowest_sets_the_pace():
    latency, rest = time([INSIDE, NETWORK], 8, 1000)
    assert latency == pytest.approx(2 * 7 / 8 * (6 * 10 + 2 * 100))  # of 8 edges, 2 leave a host
    assert rest == pytest.approx(2 * 7 / 8 * 1000 * 5)


def test_hosts_of_one_rank_have_no_inside():
    assert time([hops("none", 1, 0.0, 0.0), NETWORK], 3, 10) == time([NETWORK], 3, 10)


def test_ranks_that_nothing_joins_are_refused():
    with pytest.raises(NoPathError, match="nvlink joins 4 ranks"):
        ring_times([INSIDE], 8, [1000])


def test_latency_goes_by_the_messages_size_on_a_line_over_its_logarithm():
    alpha = PerHop(sizes=(10, 1000), values=np.array([[50.0, 10.0], [5.0, 1.0]]))
    assert alpha.at(100).tolist() == pytest.approx([30.0, 3.0])
    assert alpha.at(1).tolist() == [50.0, 5.0]
    assert alpha.at(10**6).tolist() == [10.0, 1.0]


def test_bus_factor_is_that_of_nccl_tests():
    assert (bus_factor(2), bus_factor(4), bus_factor(8)) == (1.0, 1.5, 1.75)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)],
)
def test_every_collective_has_its_own_bus_factor(collective, factor):
    assert bus_factor(4, collective) == factor
