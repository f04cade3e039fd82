"""What is offered for what a sharded step waits for."""

import dataclasses

import pytest
from support.results import spec

from scaling.analysis.results import Degrees, LossOfKind, Measured, Point
from scaling.analysis.verdicts.remedies import no_gain, offers, remedies
from scaling.analysis.verdicts.sharded import replicated, sharded_link
from scaling.settings.parallel import Fsdp, Parallel


def run(**changes):
    own = spec()
    topology = dataclasses.replace(own.topology, hosts=2, ranks_per_host=2)
    return dataclasses.replace(
        own, topology=topology, parallel=Parallel(name="fsdp", replicate=1, shard=-1), **changes
    )


def point(**costs):
    """A point of four ranks on two hosts; `costs`: share of the step by kind and phase."""
    kinds = tuple(
        LossOfKind(
            kind=name.rpartition("_")[0],
            phase=name.rpartition("_")[2],
            latency=Measured(0.0, 0.0, 0.0, 5),
            bandwidth=Measured(value, value - 0.01, value + 0.01, 5),
        )
        for name, value in costs.items()
    )
    return Point(
        world_size=4, hosts=2, status="done", loss_by_kind=kinds, parallel=Degrees(strategy="fsdp", shard=4)
    )


def overrides(offers):
    return [offer.overrides for offer in offers]


def test_the_kind_that_costs_most_comes_first():
    found = sharded_link(
        point(all_gather_forward=0.1, reduce_scatter_backward=0.3, all_gather_backward=0.2), run()
    )
    assert overrides(found)[:3] == [
        "fsdp.reduce_dtype=bf16",
        "fsdp.reshard_after_forward=false",
        "fsdp.prefetch=2",
    ]


def test_keeping_parameters_gains_at_most_what_backward_waits_for_them():
    (kept,) = (o for o in sharded_link(point(all_gather_backward=0.2), run()) if "reshard" in o.overrides)
    assert kept.gain is not None
    assert kept.gain.value == pytest.approx(1 / 0.8)


def test_what_costs_nothing_has_no_remedy_of_its_own():
    found = overrides(sharded_link(point(all_gather_forward=0.3, reduce_scatter_backward=0.001), run()))
    assert "fsdp.reduce_dtype=bf16" not in found


def test_shards_across_hosts_are_offered_within_them():
    assert "parallel=hsdp" in overrides(sharded_link(point(all_gather_forward=0.3), run()))
    one = dataclasses.replace(point(all_gather_forward=0.3), hosts=1)
    assert "parallel=hsdp" not in overrides(sharded_link(one, run()))


def test_ddp_is_offered_with_settings_that_it_takes():
    assert overrides([replicated(run())]) == ["parallel=ddp"]
    changed = (Fsdp(prefetch=2), Fsdp(units="Block"), Fsdp(reduce_dtype="bf16"))
    for fsdp in (*changed, Fsdp(separate_reduce_scatter_group=True)):  # would be refused beside ddp
        assert overrides([replicated(run(fsdp=fsdp))]) == [""]


@pytest.mark.parametrize(
    ("torch", "offered"), [("2.13.0+cu130", True), ("3.0", True), ("2.11.0+cu128", False), ("", False)]
)
def test_reduce_scatters_of_their_own_are_offered_where_the_run_s_torch_can(torch, offered):
    spec = run()
    spec = dataclasses.replace(spec, topology=dataclasses.replace(spec.topology, backend="nccl"))
    found = overrides(sharded_link(point(reduce_scatter_backward=0.3), spec, torch))
    assert ("fsdp.separate_reduce_scatter_group=true" in found) is offered


def test_what_is_set_already_is_not_offered():
    found = sharded_link(
        point(all_gather_backward=0.3, reduce_scatter_backward=0.3),
        run(fsdp=Fsdp(reshard=0, reduce_dtype="bf16")),
    )
    assert not {"fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16"} & set(overrides(found))


@pytest.mark.parametrize(
    ("degree", "hosts_ranks", "said"), [(12, 8, 6), (8, 4, 4), (4, 8, 2), (3, 8, None), (8, 6, 4)]
)
def test_divided_layers_that_wait_are_offered_fewer_ranks_a_group_which_divide_it(degree, hosts_ranks, said):
    cost = LossOfKind(kind="tensor", phase="forward", bandwidth=Measured(0.2, 0.19, 0.21))
    mesh = Degrees(strategy="fsdp_tp", shard=2, tensor=degree)
    there = dataclasses.replace(point(), loss_by_kind=(cost,), parallel=mesh)
    asked = run()
    spec = dataclasses.replace(
        asked,
        parallel=Parallel(name="fsdp_tp", replicate=1, tensor=degree),
        topology=dataclasses.replace(asked.topology, ranks_per_host=hosts_ranks),
    )
    offers = [one for one in sharded_link(there, spec) if one.overrides.startswith("parallel.tensor")]
    assert [one.overrides for one in offers] == ([f"parallel.tensor={said}"] if said else [])
    assert all(("on one host" in one.code) == (hosts_ranks % said == 0) for one in offers)


def test_shards_within_a_host_leave_the_layers_divided_as_they_are():
    """32 ranks, 8 a host, two of which divide the layers: four of a host can shard."""
    cost = LossOfKind(kind="all_gather", phase="forward", bandwidth=Measured(0.2, 0.19, 0.21))
    mesh = Degrees(strategy="fsdp_tp", shard=16, tensor=2)
    there = dataclasses.replace(point(), world_size=32, hosts=4, loss_by_kind=(cost,), parallel=mesh)
    asked = dataclasses.replace(run(), parallel=Parallel(name="fsdp_tp", replicate=1, tensor=2))
    asked = dataclasses.replace(
        asked, topology=dataclasses.replace(asked.topology, hosts=4, ranks_per_host=8)
    )
    (offer,) = (o for o in sharded_link(there, asked) if "hsdp" in o.overrides)
    assert offer.overrides == "parallel=hsdp_tp parallel.tensor=2"
    assert "hosts x 4" in offer.code
    assert "a rank holds 4 times" in offer.code


def test_divided_layers_alone_reduce_nothing_that_could_be_reduced_less_often():
    asked = dataclasses.replace(run(), parallel=Parallel(name="tp", replicate=1, tensor=4))
    mesh = Degrees(strategy="tp", shard=1, tensor=4)
    there = dataclasses.replace(point(), parallel=mesh)
    assert not any("accumulation" in o for o in overrides(sharded_link(there, asked)))
    assert any("accumulation" in o for o in overrides(sharded_link(point(), run())))


def test_a_wait_that_is_not_split_has_the_remedies_of_sharded_training(plan):
    fsdp = dataclasses.replace(plan, spec=run())
    assert "parallel=ddp" not in overrides(
        offers("communication", point(), fsdp)
    )  # a rank may not hold it all
    assert any(
        "reduce_dtype" in o
        for o in overrides(offers("communication", point(reduce_scatter_backward=0.2), fsdp))
    )
    assert not any("no_sync" in o.code for o in offers("communication", point(), fsdp))


def test_an_optimizer_that_runs_half_as_often_needs_no_reduction(plan):
    divided = dataclasses.replace(
        plan, spec=dataclasses.replace(run(), parallel=Parallel(name="tp", replicate=1, tensor=4))
    )
    (offer,) = (o for o in offers("optimizer", point(), divided) if "accumulation" in o.overrides)
    assert offer.code.startswith("optimizer.step() once in 2 batches")


@pytest.mark.parametrize(
    ("bandwidth", "offered"), [(Measured(0.2, 0.15, 0.25, 5), True), (Measured(0.015, -0.02, 0.05, 5), False)]
)
def test_a_gain_that_may_be_a_loss_is_not_offered(plan, bandwidth, offered):
    cost = LossOfKind(
        kind="all_gather", phase="backward", latency=Measured(0.0, 0.0, 0.0, 5), bandwidth=bandwidth
    )
    there = dataclasses.replace(point(), loss_by_kind=(cost,))
    given, _ = remedies("link_bandwidth", there, dataclasses.replace(plan, spec=run()), no_gain)
    assert ("fsdp.reshard_after_forward=false" in overrides(given)) is offered
