"""Curves of a mesh's groups from a topology: what a ring takes, on one host and over several."""

import pytest

from scaling.analysis.network.curve import NoPathError
from scaling.settings.parallel import Axis, Mesh
from scaling.settings.topology import Level, Link, Topology
from scaling_simulator.simulate import links

NVLINK = Level(name="nvlink", ranks=8, rate_bit_s=3_600_000_000_000, share=0.8, latency_us=3.4)
LINK = Link(rate_bit_s=400_000_000_000, share=0.9, latency_us=9.6)


def machine(**changes):
    known = {
        "name": "m",
        "kind": "local",
        "hosts": 64,
        "ranks_per_host": 8,
        "device": "cuda",
        "backend": "nccl",
        "levels": (NVLINK,),
        "link": LINK,
    }
    return Topology(**(known | changes))


def us(topology, axis, kind, wire):
    (curve,) = (
        c for c in links.curves(topology, (axis,)) if (c.group, c.kind) == (f"mesh_{axis.name}", kind)
    )
    return dict(curve.points)[float(wire)]


def test_a_group_on_one_host_has_its_links_alone():
    found = links.wires(machine(), Axis(name="shard", size=8, stride=1))
    assert (found.local, found.hosts) == (8, 1)
    assert found.bytes_s == pytest.approx(3.6e12 / 8 * 0.8)


def test_groups_that_leave_a_host_at_once_share_its_link():
    whole = links.wires(machine(), Axis(name="shard", size=512, stride=1))
    each = links.wires(machine(), Axis(name="replicate", size=64, stride=8))
    assert (whole.local, whole.hosts, each.local, each.hosts) == (8, 64, 1, 64)
    assert whole.across_bytes_s == pytest.approx(400e9 / 8 * 0.9)
    assert each.across_bytes_s == pytest.approx(whole.across_bytes_s / 8)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_large_transfers_take_their_bytes_over_the_narrowest_link(kind):
    wire = 2**33
    took = us(machine(), Axis(name="shard", size=16, stride=1), kind, wire)
    assert took == pytest.approx(wire / (400e9 / 8 * 0.9) * 1e6, rel=0.01)


def test_small_ones_take_the_hops_of_a_ring_and_an_all_reduce_has_a_tree():
    ring = [us(machine(), Axis(name="shard", size=n, stride=1), "all_gather", 0) for n in (64, 512)]
    tree = [us(machine(), Axis(name="shard", size=n, stride=1), "all_reduce", 0) for n in (64, 512)]
    assert ring[1] - 6.6 == pytest.approx((ring[0] - 6.6) * 511 / 63, rel=0.1)  # hops grow with the ranks
    assert tree[1] < 2 * tree[0]  # and a tree's with their logarithm


def test_a_factor_on_latency_is_on_all_that_does_not_depend_on_the_bytes():
    """Without latency a transfer takes what its bytes take with the protocol that moves most."""
    axis = Axis(name="shard", size=16, stride=1)
    usual, double, none = (links.curves(machine(), (axis,), latency=factor) for factor in (1, 2, 0))
    for one, two, without in zip(usual, double, none, strict=True):
        assert dict(two.points)[0.0] == pytest.approx(2 * dict(one.points)[0.0])
        for wire, took in without.points:
            assert took == pytest.approx(dict(without.points)[2.0**33] * wire / 2**33)


def test_gloo_has_neither_protocols_nor_a_fixed_cost():
    gloo = machine(backend="gloo", levels=(), ranks_per_host=1)
    took = us(gloo, Axis(name="replicate", size=4, stride=1), "all_reduce", 0)
    assert took == pytest.approx(2 * 3 * 9.6)


def test_a_rate_that_is_missing_is_asked_for():
    with pytest.raises(NoPathError, match=r"topology\.link\.rate"):
        links.curves(machine(link=Link()), (Axis(name="shard", size=16, stride=1),))


def test_axes_that_cross_hosts_together_share_a_wire():
    mesh = Mesh(replicate=4, shard=16)
    assert links.shared(machine(), mesh.dimensions) == ("mesh_replicate", "mesh_shard")
    assert links.shared(machine(), Mesh(replicate=8, shard=8).dimensions) == ()
