"""How many cores the ranks of a host share."""

import os

from scaling.worker.session import session


def test_a_rank_that_is_bound_to_a_part_of_its_host_tells_of_the_whole(monkeypatch):
    """torchrun's --numa-binding gives each rank its own node's cores; what the launcher has is the host's."""
    own = {os.getppid(): {0, 1, 2, 3}, 0: {2, 3}}
    monkeypatch.setattr(session.os, "sched_getaffinity", own.__getitem__)
    assert session.cores_of_host() == 4


def test_a_launcher_that_cannot_be_asked_leaves_the_rank_s_own_count(monkeypatch):
    def ask(pid):
        if pid:
            raise PermissionError
        return {2, 3}

    monkeypatch.setattr(session.os, "sched_getaffinity", ask)
    assert session.cores_of_host() == 2
