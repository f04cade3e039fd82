"""Groups of ranks that divide layers over hosts are named, with what a link within a host would take."""

import dataclasses

import pytest
from support.results import comm, spec

from scaling.analysis.results import Collective, Degrees, FabricLevel, LossOfKind, Measured, Point
from scaling.analysis.verdicts.sharded import tensor_across_hosts
from scaling.settings.parallel import Parallel

MIB = 2**20


def run(name="tp", ranks_per_host=2):
    own = spec()
    topology = dataclasses.replace(own.topology, hosts=2, ranks_per_host=ranks_per_host)
    return dataclasses.replace(own, topology=topology, parallel=Parallel.preset(name, ranks_per_host))


def point(tensor=4, share=0.4, waits=40.0):
    """A step of 100 ms in which eight all-reduces of 1 MiB are waited for."""
    sent = Collective(
        kind="all_reduce",
        phase="forward",
        communicator="tensor",
        ranks=tensor,
        calls=8,
        bytes=8 * MIB,
        exposed_transfer_ms=Measured(waits),
    )
    return Point(
        world_size=4,
        hosts=2,
        status="done",
        step_ms=Measured(100.0),
        comm=comm(8 * MIB, buckets=(), collectives=(sent,)),
        loss_by_kind=(
            LossOfKind(kind="tensor", phase="forward", bandwidth=Measured(share, share - 0.01, share + 0.01)),
        ),
        parallel=Degrees(strategy="tp", shard=4 // tensor, tensor=tensor),
    )


def level(alpha_us=50.0, busbw=8.0):
    return FabricLevel(
        world_size=2,
        name="host",
        alpha_us=Measured(alpha_us),
        busbw_gbit_s=Measured(busbw),
        nominal_gbit_s=None,
        curve=(),
    )


def test_groups_across_hosts_are_named_with_what_a_host_would_take():
    (found,) = tensor_across_hosts(point(), run(), [level()])
    # Eight all-reduces over two ranks: 2 hops of 50 us each, and 8 MiB at 8 Gbit/s.
    inside_ms = 8 * 2 * 0.05 + 8 * MIB * 8 / 8e9 * 1e3
    assert found.share.value == pytest.approx(0.4)
    assert "waits 40.0 of 100.0 ms" in found.evidence[0]
    assert f"{inside_ms:.1f} ms (predicted" in found.evidence[1]
    (remedy,) = found.try_
    assert remedy.overrides == "parallel=fsdp_tp parallel.tensor=2"
    # Twice as many groups have half the samples each.
    assert remedy.predicted_gain.value == pytest.approx(1 / (1 - 0.4 * (1 - inside_ms / 2 / 40)))


def test_groups_within_a_host_are_not_named():
    assert tensor_across_hosts(point(tensor=2), run("fsdp_tp"), [level()]) == ()
    assert tensor_across_hosts(point(share=0.02), run(), [level()]) == ()


def test_where_no_link_within_a_host_was_measured_it_says_how():
    (found,) = tensor_across_hosts(point(), run(), [dataclasses.replace(level(), world_size=4)])
    assert "add 2 to world_sizes" in found.evidence[1]
    assert found.try_[0].predicted_gain is None


def test_with_one_rank_a_host_no_group_fits():
    (found,) = tensor_across_hosts(point(), run(ranks_per_host=1), [level()])
    assert found.try_[0].overrides == ""
    assert "parallel=fsdp" in found.try_[0].code
