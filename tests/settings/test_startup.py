"""How long ranks take to join: it grows with them, and the range widens where nothing was measured."""

from __future__ import annotations

import pytest

from scaling.config.compose import requests
from scaling.settings.plan import make_plan
from scaling.settings.timeouts import LAZY_RANKS, MEASURED_RANKS, group_s, joining, lazy, start_limit_s

CLUSTER = ("topology=nvlink_node", "topology.ranks_per_host=8")


def of(hosts, *more):
    """The plan of 8 ranks on each of some hosts."""
    asked = [*CLUSTER, f"topology.hosts={hosts}", f"world_sizes=[1,8,{8 * hosts}]", *more]
    spec = requests("plan", asked).items[0].spec
    return make_plan(spec, run_id="20260101-000000-abc", created="", version="")


@pytest.mark.parametrize(("at_first_use", "power"), [(False, 2.0), (True, 1.1)])
def test_a_mesh_takes_four_times_as_long_for_twice_the_ranks_and_first_use_little_more_than_twice(
    at_first_use, power
):
    least, most = group_s(256, at_first_use=at_first_use)
    assert least < most
    assert least / group_s(128, at_first_use=at_first_use)[0] == pytest.approx(2**power, rel=0.07)


def test_many_ranks_connect_when_they_first_exchange_something():
    assert not lazy(LAZY_RANKS - 1)
    assert lazy(LAZY_RANKS)
    few, many = (group_s(4096, at_first_use=k) for k in (True, False))
    assert few[0] < 5
    assert many[0] > 500


def test_beyond_what_was_measured_the_range_is_wide_and_says_so():
    known, far = joining(of(MEASURED_RANKS // 8)), joining(of(512))
    assert known.measured
    assert known.high_s < 2 * known.low_s
    assert not far.measured
    assert far.high_s > 5 * far.low_s


def test_more_world_sizes_make_more_groups():
    fewer, more = of(64), of(64, "world_sizes=[1,8,256,512]")
    assert joining(more).high_s > joining(fewer).high_s + group_s(256, at_first_use=True)[1] * 0.99


def test_the_limit_of_a_start_is_the_clusters_with_the_longest_time_to_join():
    assert start_limit_s(of(2)) == 181
    assert start_limit_s(of(512)) == pytest.approx(180 + joining(of(512)).high_s, abs=1)
    assert start_limit_s(of(512, "cluster.start_s=600")) > 660
