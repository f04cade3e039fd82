"""How far many ranks' own steps are apart, and whose are the slowest: told from clusters whose slow ranks are known."""

import pytest

MS = 1e6


@pytest.fixture
def many(cluster):
    """many(changes): three hosts of eight ranks each."""

    def made(**changes):
        usual = {"world_sizes": (1, 24), "hosts": 3, "ranks_per_host": 8, "rounds": 6, "steps": 4}
        return cluster.Truth(**usual | changes)

    return made


def test_the_slowest_rank_is_named_with_its_host(measure, many, cluster):
    late = (
        cluster.Straggler(rank=13, extra_ns=8 * MS, phase="input"),
        cluster.Straggler(rank=2, extra_ns=2 * MS),
    )
    found = measure(many(stragglers=late)).analysis.ranks
    assert (found.world_size, found.slow) == (24, 2)
    first, second = found.hosts[:2]
    assert (first.host, first.ranks, first.slowest[0].rank, first.slowest[0].slow) == (1, 8, 13, True)
    assert (second.host, second.slowest[0].rank, second.slowest[0].slow) == (0, 2, True)
    assert not any(step.slow for host in found.hosts for step in host.slowest[1:])
    assert first.slowest[0].step_ms.value - found.median_ms == pytest.approx(8, rel=0.03)
    assert found.most_ms == pytest.approx(first.slowest[0].step_ms.value)
    assert first.ratio == pytest.approx(1 + 8 / found.median_ms / 8, rel=0.005)


def test_of_equal_ranks_none_is_slow(measure, many):
    found = measure(many()).analysis.ranks
    assert found.slow == 0
    assert found.least_ms <= found.p5_ms <= found.median_ms <= found.p95_ms <= found.most_ms
    assert found.most_ms / found.least_ms < 1.01


def test_of_a_few_ranks_there_is_none(measure, many):
    assert measure(many(world_sizes=(1, 4))).analysis.ranks is None
