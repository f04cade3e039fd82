"""What collectives put on a host's link, held to a count of who sends what to whom."""

import itertools

import pytest
from support.results import emulated

from scaling.settings.parallel import Mesh
from scaling_simulator.simulate.placed import place
from scaling_simulator.simulate.request import meshes_of

MIB = 2**20


def sent_by_host(groups, where, kind):
    """Bytes that each host sends to others, of a collective of a MiB in every group: one message after the other."""
    sent = dict.fromkeys(range(where.hosts), 0.0)
    for group in groups:
        n = len(group)
        if kind == "reduce_scatter":
            messages = [(a, b, MIB / n) for a, b in itertools.permutations(group, 2)]
        else:
            rounds = 2 if kind == "all_reduce" else 1
            messages = [
                (group[k], group[(k + 1) % n], MIB / n) for k in range(n) for _ in range(rounds * (n - 1))
            ]
        for a, b, size in messages:
            if where.host_of(a) != where.host_of(b):
                sent[where.host_of(a)] += size
    return sent


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("per_host", [1, 2, 4])
@pytest.mark.parametrize("placement", ["packed", "spread"])
def test_every_axis_of_meshes_of_of_eight_ranks_loads_a_link_as_its_messages_do(kind, per_host, placement):
    where = emulated(8 // per_host, per_host, placement=placement)
    for parallel in meshes_of(8, 8):
        mesh = parallel.mesh(8)
        for axis in mesh.axes():
            groups = mesh.axes()[axis]
            n = len(groups[0])
            wire = (2 if kind == "all_reduce" else 1) * (n - 1) / n * MIB
            true = max(sent_by_host(groups, where, kind).values())
            assert place(groups, where).carried(kind, "gloo") * wire == pytest.approx(true), (mesh, axis)


def test_a_strided_axis_has_the_hosts_that_its_ranks_are_on():
    mesh, where = Mesh(replicate=2, shard=2, tensor=2), emulated(2, 4)
    axes = {axis: place(groups, where) for axis, groups in mesh.axes().items()}
    assert {axis: (placed.local, placed.hosts) for axis, placed in axes.items()} == {
        "replicate": (1, 2),
        "shard": (2, 1),
        "tensor": (2, 1),
    }
    assert axes["replicate"].places == (0, 4)
    assert axes["replicate"].ring == 4  # four pairs of copies over one link
    assert not axes["shard"].across


def test_a_part_of_the_shards_has_a_placement_of_its_own():
    mesh, where = Mesh(shard=8), emulated(2, 4)
    assert not place(((0, 1, 2, 3), (4, 5, 6, 7)), where).across
    assert place(mesh.axes()["shard"], where).across


def test_on_a_device_a_reduce_scatter_goes_round_a_ring():
    placed = place(Mesh(shard=4).axes()["shard"], emulated(2, 2))
    assert placed.carried("reduce_scatter", "nccl") == 1
    assert placed.carried("reduce_scatter", "gloo") == pytest.approx(4 / 3)
