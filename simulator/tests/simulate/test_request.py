"""Command lines that ask for a simulation, and those that are refused in one line."""

import pytest
from support.commands import refused

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.settings.parallel import Parallel
from scaling_simulator.simulate.request import to_simulation


def test_a_simulated_machine_has_as_many_hosts_as_its_world_size_needs():
    asked = to_simulation(
        ["topology=simulated_hgx_h100", "world_sizes=[8,4096]", "parallel=fsdp,hsdp", "model=gpt2"]
    )
    assert asked.spec.topology.hosts == 512
    assert asked.spec.topology.accelerator == "NVIDIA H100 80GB HBM3"
    assert [one.name for one in asked.strategies] == ["fsdp", "hsdp"]
    assert asked.spec.world_sizes == (8, 4096)


@pytest.mark.parametrize(
    ("strategy", "world", "given", "degrees"),
    [
        ("ddp", 16, [], (16, 1, 1)),
        ("fsdp", 16, [], (1, 16, 1)),
        ("hsdp", 64, [], (8, 8, 1)),
        ("hsdp", 4, [], (1, 4, 1)),
        ("hsdp", 64, ["shard=16"], (4, 16, 1)),
        ("tp", 8, [], (1, 1, 8)),
        ("fsdp_tp", 64, [], (1, 8, 8)),
        ("fsdp_tp", 4, [], (1, 1, 4)),
        ("fsdp_tp", 64, ["tensor=4"], (1, 16, 4)),
        ("hsdp_tp", 64, ["tensor=4", "shard=4"], (4, 4, 4)),
        ("fsdp", 1, [], (1, 1, 1)),
    ],
)
def test_a_strategy_has_its_mesh_at_every_world_size(strategy, world, given, degrees):
    words = [f"parallel.{degree}" for degree in given]
    asked = to_simulation(["topology=simulated_hgx_h100", f"parallel={strategy}", *words])
    mesh = asked.strategies[0].mesh(world)
    assert (mesh.replicate, mesh.shard, mesh.tensor) == degrees
    assert mesh.size == world


def test_neighbouring_ranks_share_the_innermost_axis():
    mesh = Parallel(name="hsdp_tp", replicate=4, shard=4, tensor=4).mesh(64)
    assert [(a.name, a.size, a.stride) for a in mesh.dimensions] == [
        ("replicate", 4, 16),
        ("shard", 4, 4),
        ("tensor", 4, 1),
    ]
    assert mesh.data_parallel == 16


def test_settings_of_sharded_training_are_those_of_a_run():
    words = ["fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16"]
    asked = to_simulation(["topology=simulated_hgx_h100", "parallel=fsdp,hsdp", *words])
    assert (asked.spec.fsdp.reshard, asked.spec.fsdp.reduce_dtype) == (0, "bf16")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["parallel=fsdp", "parallel.replicate=2"], "parallel=fsdp has no ranks on this axis"),
        (["parallel.shard=2"], "parallel=ddp has no ranks on this axis"),
        (["parallel=tp", "parallel.shard=2"], "parallel=tp has no ranks on this axis"),
        (["parallel=ddp", "fsdp.prefetch=2"], "belongs to parallel=fsdp"),
    ],
)
def test_degrees_and_settings_of_other_strategies_are_refused(words, said):
    with pytest.raises(InputError, match=said):
        to_simulation(["topology=simulated_hgx_h100", *words])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("parallel=cp", "context parallel is not simulated"),
        ("parallel=ep", "MoE"),
        ("parallel=zero9", "ddp, fsdp, hsdp, tp"),
        ("parallel.pipeline=2", "parallel.tensor"),
        ("parallel.shard=0", "a number of ranks"),
        ("task=inference", "only training is simulated"),
        ("inject.compute_ms=30", "no injected faults"),
        ("parallel.sequence=2", "true or false"),
        ("parallel.sequence=true", "divides no layers"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(word, said):
    with pytest.raises(InputError, match=said):
        to_simulation(["topology=simulated_hgx_h100", word])


def test_what_lies_between_divided_layers_is_divided_by_tokens():
    words = ["topology=simulated_hgx_h100", "world_sizes=[16]", "parallel.tensor=8", "parallel.sequence=true"]
    (parallel,) = to_simulation([*words, "parallel=fsdp_tp"]).strategies
    assert parallel.sequence
    every = to_simulation([*words, "parallel=auto"]).strategies
    assert {one.sequence for one in every if one.divided} == {True}


def test_a_run_with_a_late_rank_is_simulated_at_fewer_ranks_than_its_number():
    (late,) = requests(
        "run", ["topology=emulated_pcie", "world_sizes=[1,2]", "inject.rank=1", "inject.compute_ms=15"]
    ).items
    assert to_simulation(["world_sizes=[1]"], late.yaml).spec.world_sizes == (1,)


@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_there_is_no_plan_of_what_is_not_measured(verb, capsys):
    refused(capsys, [verb, "topology=simulated_hgx_h100"], "`scaling run topology=simulated_hgx_h100`")


@pytest.mark.parametrize(
    "words",
    [
        ["topology=simulated_no_such_machine"],
        ["topology=simulated_local"],
        ["topology=simulated_pcie_node", "world_sizes=[2]"],
        ["topology=simulated_hgx_h100", "world_sizes=[99999]"],
        ["topology=simulated_hgx_h100", "--cfg", "job"],
    ],
)
def test_the_command_refuses_it_in_one_line(words, capsys):
    refused(capsys, ["run", *words])


def test_auto_is_every_mesh_of_one_world_size_whose_layers_stay_within_a_host():
    words = ["topology=simulated_hgx_h100", "world_sizes=[16]", "parallel=auto", "memory_limit=80GB"]
    asked = to_simulation(words)
    assert asked.every_mesh
    assert asked.memory_limit_bytes == 80e9
    degrees = [(one.replicate, one.shard, one.tensor) for one in asked.strategies]
    assert len(set(degrees)) == len(degrees) == 5 + 4 + 3 + 2
    assert all(r * s * t == 16 and t <= 8 for r, s, t in degrees)
    named = {one.name: (one.replicate, one.shard, one.tensor) for one in asked.strategies}
    assert named["ddp"] == (16, 1, 1)
    assert named["fsdp"] == (1, 16, 1)
    for one in asked.strategies:
        assert one.mesh(16).size == 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["world_sizes=[8,16]"], "world_sizes=[64] is expected"),
        (["world_sizes=[16]", "parallel.tensor=3"], "parallel.tensor=3: no mesh of 16 ranks"),
    ],
)
def test_auto_needs_one_world_size_and_degrees_that_fit(words, said):
    with pytest.raises(InputError) as refused_:
        to_simulation(["topology=simulated_hgx_h100", "parallel=auto", *words])
    assert said in str(refused_.value)
