"""How many cores the ranks of a host have together."""

import os

from scaling.worker import launch


def test_a_rank_that_is_bound_to_a_part_of_its_host_tells_of_the_whole(monkeypatch):
    """torchrun's --numa-binding gives each rank its own node's cores; what the launcher has is the host's."""
    own = {os.getppid(): {0, 1, 2, 3}, 0: {2, 3}}
    monkeypatch.setattr(launch.os, "sched_getaffinity", own.__getitem__)
    assert launch._cores_of_the_host() == 4


def test_where_the_launcher_is_not_to_be_asked_its_own_count(monkeypatch):
    def ask(pid):
        if pid:
            raise PermissionError
        return {2, 3}

    monkeypatch.setattr(launch.os, "sched_getaffinity", ask)
    assert launch._cores_of_the_host() == 2
