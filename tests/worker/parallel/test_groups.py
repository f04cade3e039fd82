"""What carries a group's gradients is given back with it, and nothing that others need."""

import pytest
import torch
import torch.distributed as dist

from scaling.worker.parallel.groups import Group, free


@pytest.fixture
def groups(one_rank):
    """One rank's, each a group of its own, as NCCL has them beside the control plane; Gloo carries 4 itself.

    A pairing of the ranks of world size 8 shares its communicator.
    """
    alone, two, two_data, four, eight, eight_data = (dist.new_group([0], backend="gloo") for _ in range(6))
    carriers = {
        1: (None, alone),
        2: (two, two_data),
        4: (four, four),
        8: (eight, eight_data),
        -1: (eight, eight_data),
    }
    return {key: Group(key=key, ranks=(0,), control=c, data=d) for key, (c, d) in carriers.items()}


def known(group):
    return group in dist.distributed_c10d._world.pg_map


def test_a_world_size_s_own_communicator_goes_with_it(groups):
    mine = groups[2].data
    free(groups, 2)
    assert not known(mine)
    assert groups[2].data is None
    assert known(groups[2].control)
    dist.all_reduce(torch.ones(1), group=groups[1].data)
    free(groups, 2)  # there is nothing left to give back


def test_what_others_need_stays(groups):
    for key in (1, 4, 8):
        free(groups, key)
        assert known(groups[key].data)
