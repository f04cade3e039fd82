"""Which ranks are drawn where there are too many for all."""

import numpy as np

from scaling.analysis.decompose.timeline import HOSTS, RANKS_MAX, drawn

RANKS, EACH = 96, 8


def own_steps(**longer):
    """Steps of 96 ranks on 12 hosts, all near 40 ms; `r<rank>`: by how much one is longer."""
    own = 40e6 + 1e3 * ((np.arange(RANKS) * 37) % RANKS)
    for name, more in longer.items():
        own[int(name[1:])] += more
    return own


def hosts(each=EACH):
    return [rank // each for rank in range(RANKS)]


def test_the_slowest_come_first_then_the_slowest_other_hosts_then_typical_ranks():
    slow = {f"r{rank}": 1e5 * rank for rank in (20, 21, 50, 51, 90, 94)}  # hosts 2, 6, 11
    busy = {f"r{rank}": 1e6 for rank in range(40, 48)}  # all of host 5
    found = drawn(own_steps(**slow, **busy), hosts())
    assert found.slowest == (94, 90, 51, 50, 21)
    assert found.of_hosts[0][0] == 5
    assert found.of_hosts[0][1] in range(40, 48)
    assert len(found.of_hosts) == HOSTS
    assert not {host for host, _ in found.of_hosts} & {rank // EACH for rank in found.slowest}
    assert len({*found.ranks}) == len(found.ranks) == RANKS_MAX


def test_typical_ranks_are_those_next_to_the_median():
    own = own_steps()
    found = drawn(own, hosts())
    away = np.abs(own - np.median(own))
    others = set(range(RANKS)) - set(found.ranks)
    assert max(away[[*found.typical]]) <= min(away[[*others]])


def test_hosts_of_one_rank_are_its_ranks():
    found = drawn(own_steps(r70=5e6), hosts(each=1))
    assert found.of_hosts == ()
    assert found.slowest[0] == 70
    assert len(found.ranks) == RANKS_MAX


def test_few_hosts_leave_their_room_to_typical_ranks():
    found = drawn(own_steps(), hosts(each=RANKS))
    assert found.of_hosts == ()
    assert len({*found.ranks}) == RANKS_MAX


def test_where_there_is_room_for_all_nothing_is_chosen():
    assert drawn(np.ones(RANKS_MAX), [0] * RANKS_MAX) is None
