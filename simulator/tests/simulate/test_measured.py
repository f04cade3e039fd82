"""What a run gives for a simulation: kernels that add up to its step."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from support.results import emulated

from scaling.analysis.network.curve import Hops, PerHop
from scaling.errors import InputError
from scaling.records.checkup import COPY, LAUNCH, SCHEMA, Kernel, KernelTable
from scaling.settings.parallel import Mesh, Parallel
from scaling_simulator.simulate import links, measured
from scaling_simulator.simulation import Chip

CHIP = Chip(name="here", flop_s=1e9, flop_s_fp32=1e9, memory_bytes_s=1e9, kernel_us=0.0)


def table(step_ns, *kernels, slept_ns=0):
    return KernelTable(
        schema=SCHEMA, batch=8, precision="fp32", step_ns=step_ns, kernels=kernels, slept_ns=slept_ns
    )


def kernel(key, time_ns, calls=1.0, flops=0, size=0):
    return Kernel(key=key, operator=key.split("|")[0], calls=calls, time_ns=time_ns, flops=flops, bytes=size)


def test_on_a_cpu_operators_share_what_the_step_takes_beyond_them():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2), kernel("aten::add|b", 100_000))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] + times.us["aten::add|b"] == pytest.approx(1000)
    assert "90.0%" in said[0]


def test_on_a_device_the_rest_is_the_hosts():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2))
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.us["aten::mm|a"] == pytest.approx(400)


LAUNCHES = {LAUNCH: 1e5}


@pytest.mark.parametrize(
    ("busy_ns", "alone_ns", "launch_us"),
    [(900_000, None, 10), (100_000, None, 100), (100_000, 2e6, 200), (100_000, 1e4, 10)],
    ids=["busy", "waits for the host", "over the whole run", "never faster than the ceiling"],
)
def test_where_the_device_waits_the_step_is_the_host_s_time(busy_ns, alone_ns, launch_us):
    given = table(1_000_000, kernel("aten::mm|a", busy_ns // 10, calls=10))
    found, said = measured._launch_us(LAUNCHES, given, alone_ns, measured_cpu=False, elsewhere=False)
    assert found == pytest.approx(launch_us)
    assert ("waits for the host in 90%" in said) is (busy_ns < 500_000)


def test_operators_that_take_longer_than_their_step_are_scaled_to_it_and_that_is_said():
    given = table(1_000_000, kernel("aten::mm|a", 600_000, calls=2))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] == pytest.approx(1000)
    assert "assumption" in said[0]


def test_other_shapes_take_their_operators_share_of_what_the_device_can_do():
    # 1 ms at 1 GFLOP/s: a factor of 2
    given = table(2_000_000, kernel("aten::mm|a", 2_000_000, flops=1_000_000))
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.factors == {"aten::mm": pytest.approx(2.0), "*": pytest.approx(2.0)}


def test_on_a_cpu_kernels_are_scaled_to_a_step_alone_over_the_whole_run():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2), kernel("aten::add|b", 100_000))
    times, said = measured._times(given, CHIP, on_cpu=True, alone_ns=1_200_000)
    assert 2 * times.us["aten::mm|a"] + times.us["aten::add|b"] == pytest.approx(1200)
    assert "scaled by 1.200" in said[1]


def test_what_a_synthetic_model_sleeps_is_in_no_kernel():
    """The simulated model sleeps as long as the measured one."""
    given = table(1_000_000, kernel("aten::mm|a", 100_000), slept_ns=800_000)
    alone, said = measured._times(given, CHIP, on_cpu=True)
    assert alone.us == {"aten::mm|a": pytest.approx(200)}
    assert "which sleeps 0.8 ms besides" in said[0]
    whole, _ = measured._times(given, CHIP, on_cpu=True, alone_ns=900_000)
    assert whole.us == {"aten::mm|a": pytest.approx(100)}


def test_the_device_is_what_its_ceilings_say():
    ceilings = {"matmul_fp32": 5e10, COPY: 8e9}
    chip = measured._measured_chip(ceilings, table(1000), elsewhere=True)
    assert (chip.flop_s, chip.memory_bytes_s) == (5e10, 8e9)


def test_without_ceilings_it_is_the_best_that_kernels_reached_and_stands_for_itself_alone():
    given = table(1000, kernel("aten::add|a", 100, size=400), kernel("aten::add|b", 100, size=800))
    assert measured._measured_chip({}, given, elsewhere=False).memory_bytes_s == 8e9
    with pytest.raises(InputError, match="cannot be scaled to another"):
        measured._measured_chip({}, given, elsewhere=True)


def test_a_large_copy_is_not_as_slow_a_byte_as_the_small_one_that_was_timed():
    """What any kernel takes at the least is no rate: 2 us for 256 bytes, and 32 MiB at 1.8 TB/s in another."""
    given = table(100_000, kernel("copy|b", 2_000, size=256), kernel("aten::zeros|a", 20_000, size=2**25))
    chip = measured._measured_chip({}, given, elsewhere=False)
    times, _ = measured._times(given, chip, on_cpu=False)
    assert chip.kernel_us == 2
    assert times.factors["copy"] == pytest.approx(1, rel=0.01)


INSIDE_NS, LINK_NS = 0.5, 20.0
"""Of a byte within a host, and on a host's link of 400 Mbit/s."""


def source(n, name, byte_ns, hop_ns):
    link = Hops(
        name=name,
        ranks=None,
        alpha=PerHop(sizes=(1,), values=np.array([[hop_ns]])),
        beta_ns=np.array([byte_ns]),
    )
    return SimpleNamespace(world_size=n, link=link, plain=np.ones(1))


BOTH = (source(2, "host", INSIDE_NS, 1e4), source(4, "network", LINK_NS, 1e5))


def microseconds(mesh, kind, wire, *, hosts=2, per_host=2, sources=BOTH):
    """By axis: what a transfer takes over emulated hosts whose links were measured over 2 and 4 ranks."""
    where = emulated(hosts, per_host, name="emulated_pcie")
    found = measured.curves(where, where, sources, mesh)
    return {
        curve.group.removeprefix("mesh_"): dict(curve.points)[float(wire)]
        for curve in found
        if curve.kind == kind
    }


WIRE = 2**28


@pytest.mark.parametrize(
    ("mesh", "kind", "axis", "byte_ns"),
    [
        (Mesh(replicate=4), "all_reduce", "replicate", LINK_NS),
        (Mesh(replicate=2, shard=2), "all_gather", "shard", INSIDE_NS),  # neighbours share a host
        (Mesh(replicate=2, shard=2), "reduce_scatter", "shard", INSIDE_NS),
        (Mesh(replicate=2, shard=2), "all_reduce", "replicate", 2 * LINK_NS),  # two pairs leave each host
        (Mesh(shard=2, tensor=2), "all_reduce", "tensor", INSIDE_NS),
        (Mesh(shard=2, tensor=2), "all_gather", "shard", 2 * LINK_NS),
        (Mesh(shard=2, tensor=2), "reduce_scatter", "shard", 2 * LINK_NS),
        (Mesh(shard=4), "all_gather", "shard", LINK_NS),
        (
            Mesh(shard=4),
            "reduce_scatter",
            "shard",
            4 / 3 * LINK_NS,
        ),  # each rank sends to two on the other host
        (Mesh(tensor=4), "all_reduce", "tensor", LINK_NS),
    ],
)
def test_each_axis_has_the_links_that_its_ranks_use(mesh, kind, axis, byte_ns):
    assert microseconds(mesh, kind, WIRE)[axis] == pytest.approx(WIRE * byte_ns / 1e3, rel=0.01)


def test_hops_are_those_of_the_ranks_links():
    small = microseconds(Mesh(replicate=2, shard=2), "all_reduce", 0)
    assert small["shard"] == pytest.approx(2 * 10, rel=0.01)
    assert small["replicate"] == pytest.approx(2 * 100, rel=0.01)
    assert small["default_pg"] == pytest.approx(6 * (10 + 100) / 2, rel=0.01)


def test_where_nothing_was_measured_within_a_host_that_is_said():
    where = emulated(2, 2, name="emulated_pcie")
    mesh = Mesh(replicate=2, shard=2)
    assert measured.inside_unknown(where, where, BOTH[1:], mesh)
    assert not measured.inside_unknown(where, where, BOTH, mesh)
    alone = microseconds(mesh, "all_gather", WIRE, sources=BOTH[1:])
    assert alone["shard"] == pytest.approx(WIRE * LINK_NS / 1e3, rel=0.01)


def test_axes_that_leave_a_host_share_its_link():
    where = emulated(4, 1, name="emulated_pcie")
    assert links.shared(where, Mesh(replicate=2, shard=2).dimensions) == ("mesh_replicate", "mesh_shard")
    within = dataclasses.replace(where, ranks_per_host=2, hosts=2)
    assert links.shared(within, Mesh(replicate=2, shard=2).dimensions) == ()


def test_what_sharding_takes_of_the_cores_is_known_only_where_it_ran():
    fsdp = Parallel.preset("fsdp", 2)
    assert "parallel=fsdp" in (measured.of_the_cores(fsdp, ["ddp"]) or "")
    assert measured.of_the_cores(fsdp, ["ddp", "fsdp"]) is None
    assert measured.of_the_cores(Parallel.preset("ddp", 2), ["fsdp"]) is None
