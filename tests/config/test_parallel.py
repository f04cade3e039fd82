"""The strategy and its mesh: presets, what does not fit, and settings of another strategy."""

import pytest

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.settings.parallel import Mesh, MeshError, Parallel

HOSTS = ("topology=emulated_pcie", "topology.hosts=2", "topology.ranks_per_host=2")


def parallel(*overrides):
    (request,) = requests("run", [*HOSTS, *overrides]).items
    return request.spec.parallel


def test_ddp_is_the_default_and_every_rank_is_a_copy():
    assert parallel().mesh(4) == Mesh(replicate=4)


def test_fsdp_shards_over_all_ranks():
    assert [parallel("parallel=fsdp").mesh(n) for n in (1, 2, 4)] == [Mesh(), Mesh(shard=2), Mesh(shard=4)]


def test_hsdp_shards_over_the_ranks_of_a_host():
    mesh = parallel("parallel=hsdp").mesh(4)
    assert mesh == Mesh(replicate=2, shard=2)
    assert mesh.axes() == {"shard": ((0, 1), (2, 3)), "replicate": ((0, 2), (1, 3))}
    assert parallel("parallel=hsdp").mesh(2) == Mesh(shard=2)  # one host


def test_communicators_have_keys_of_their_own_and_the_one_of_all_ranks_is_the_world_size():
    assert Mesh(shard=4).keys() == {"shard": 4}
    assert Mesh(replicate=4).keys() == {"replicate": 4}
    keys = {
        key
        for mesh in (Mesh(replicate=2, shard=4), Mesh(replicate=4, shard=2))
        for key in mesh.keys().values()
    }
    assert len(keys) == 4
    assert max(keys) < -100


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["parallel=fsdp", "parallel.shard=3", "world_sizes=[4]"], "parallel.shard=1|2|4 would"),
        (["parallel=hsdp", "parallel.shard=3", "world_sizes=[4]"], "shard 3 does not fit world size 4"),
        (["parallel=single", "world_sizes=[2]"], "parallel=single trains on one rank"),
        (["parallel=ddp", "parallel.shard=2"], "use parallel=fsdp or parallel=hsdp"),
        (["parallel=fsdp", "parallel.replicate=2"], "use parallel=hsdp for several"),
        (["parallel.tensor=2"], "use parallel=tp, fsdp_tp or hsdp_tp"),
        (["parallel.pipeline=2"], "1 is expected"),
        (["parallel=hsdp", "parallel.shard=-1"], "parallel.replicate=-1 takes what the others leave"),
        (["parallel=fsdp_tp", "parallel.tensor=-1"], "parallel.shard=-1 takes what the others leave"),
        (
            ["parallel=fsdp_tp", "parallel.tensor=3", "world_sizes=[1,4]"],
            "tensor 3 does not fit world size 4",
        ),
        (["parallel=fsdp_tp", "parallel.replicate=2"], "use parallel=hsdp_tp for several"),
        (["parallel=tp", "global_batch=64", "mode=strong"], "use batch_per_rank"),
        (["parallel=fsdp", "parallel.sequence=true"], "use parallel=tp, fsdp_tp or hsdp_tp"),
        (["parallel.shard=0"], "at least 1, or -1"),
        (["parallel=fsdp", "ddp.static_graph=true"], "belongs to parallel=ddp"),
        (["fsdp.prefetch=2"], "belongs to parallel=fsdp and hsdp"),
        (["parallel=fsdp", "fsdp.reshard_after_forward=some"], "a number of ranks is expected"),
        (["parallel=fsdp", "fsdp.reshard_after_forward=3", "world_sizes=[4]"], "does not divide the 4 ranks"),
        (["parallel=fsdp", "fsdp.reshard_after_forward=2", "world_sizes=[2,4]"], "use world_sizes=[1,4]"),
        (["parallel=fsdp", "batch=[4,8]"], "measured with parallel=ddp"),
        (["parallel=fsdp", "topology.placement=spread"], "packed"),
        (["parallel=fsdp_tp", "compile=true"], "runs eager"),
        (["parallel=fsdp_tp", "parallel.tensor=2", "precision=fp16"], "loss scaler"),
        (["parallel=zero3"], "available: ddp, fsdp, fsdp_tp, hsdp, hsdp_tp, single, tp"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(overrides, said):
    with pytest.raises(InputError, match=r"^[^\n]+$") as refused:
        parallel(*overrides)
    assert said in str(refused.value)


def test_a_mesh_without_a_free_degree_names_what_could_be_free():
    with pytest.raises(MeshError, match=r"parallel\.replicate=-1"):
        Parallel(name="hsdp", replicate=2, shard=2).mesh(8)


def test_strategies_side_by_side_have_their_own_meshes():
    (request,) = requests("run", [*HOSTS, "vary.parallel=[ddp,fsdp,hsdp]"]).items
    assert not request.spec.kind.by_cases
    meshes = [one.parallel.mesh(4) for one in request.spec.strategies]
    assert meshes == [Mesh(replicate=4), Mesh(shard=4), Mesh(replicate=2, shard=2)]


def test_all_meshes_of_two_hosts_can_be_side_by_side():
    names = "ddp,fsdp,hsdp,tp,fsdp_tp,hsdp_tp"
    (request,) = requests("run", [*HOSTS, f"vary.parallel=[{names}]", "world_sizes=[4]"]).items
    meshes = [one.parallel.mesh(4) for one in request.spec.strategies]
    assert [(mesh.replicate, mesh.shard, mesh.tensor) for mesh in meshes] == [
        (4, 1, 1),
        (1, 4, 1),
        (2, 2, 1),
        (1, 1, 4),
        (1, 2, 2),
        (2, 1, 2),
    ]
    assert request.spec.tensor_degrees == (2, 4)


def test_a_strategy_that_is_named_beside_has_the_degrees_given_there():
    (request,) = requests(
        "run",
        [
            "topology=local",
            "topology.ranks_per_host=4",
            "parallel=hsdp",
            "parallel.shard=2",
            "vary.parallel=[fsdp,hsdp]",
        ],
    ).items
    assert request.spec.strategies[1].parallel.mesh(4) == Mesh(replicate=2, shard=2)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["vary.parallel=[ddp,ddp]"], "each item once is expected"),
        (["vary.parallel=[ddp,single]"], "vary.parallel"),
        (["vary.parallel=[ddp,tp]", "global_batch=64", "mode=strong"], "use batch_per_rank"),
        (["vary.parallel=[ddp,fsdp]", "vary.precision=[fp32,bf16]"], "leave those out"),
        (["vary.parallel=[ddp,fsdp]", "batch=[8,16]"], "leave those out"),
        (["vary.parallel=[fsdp,hsdp]", "world_sizes=[1,2]"], "has the same mesh as fsdp"),
        (["vary.parallel=[ddp,tp]", "compile=true"], "compile=true: parallel=tp runs eager"),
    ],
)
def test_strategies_that_cannot_stand_side_by_side(overrides, said):
    with pytest.raises(InputError, match=said):
        requests("run", [*HOSTS, *overrides])
