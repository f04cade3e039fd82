"""Models whose layers are divided over four real ranks train as whole ones do, and tell what they send."""

import dataclasses
import itertools
from collections import Counter
from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from scaling.errors import InputError
from scaling.settings.parallel import Mesh
from scaling.worker.models import language
from scaling.worker.parallel.tensor import auto_plan, divide

SCRIPT = Path(__file__).with_name("tensor_ranks.py")
MODELS = ("llama", "tied", "gpt2", "bert", "vit", "mlp", "synthetic")
MESHES = {
    "tp": Mesh(tensor=4),
    "replicas": Mesh(replicate=2, tensor=2),
    "fsdp_tp": Mesh(shard=2, tensor=2),
    "hsdp_tp": Mesh(replicate=2, tensor=2),
}
TOKENS = ("tp tokens", "fsdp_tp tokens", "hsdp_tp tokens")
"""Meshes with sequence parallel, which has no plan for the MLP."""
OF_TWO = [(2, "tp", model) for model in MODELS]
OF_TWO += [(2, "tp tokens", model) for model in ("llama", "gpt2", "vit", "synthetic")]
OF_FOUR = [(4, mesh, model) for mesh in MESHES for model in MODELS]
OF_FOUR += [(4, "tp tokens", model) for model in MODELS if model != "mlp"]
OF_FOUR += [(4, mesh, model) for mesh in TOKENS[1:] for model in ("llama", "vit")]
WITH = [(2, "tp"), (2, "tp tokens"), (4, "fsdp_tp"), (4, "fsdp_tp tokens")]
"""Where other ways to train are tried."""
TIMEOUT_S = 900
"""A minute of two cores, where nothing runs beside."""
LAYERS, ROWS = 2, 4 * 2 * 16 * 64
"""Layers, and bytes of the activations between them: two samples of 16 tokens."""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_ranks(SCRIPT, 2, tmp_path_factory.mktemp("two") / "store", 2, timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(SCRIPT, 4, tmp_path_factory.mktemp("four") / "store", 4, timeout_s=TIMEOUT_S)


@pytest.fixture
def all_ranks(request):
    """What the ranks of a world found, by its size."""
    return lambda world: request.getfixturevalue({2: "two", 4: "ranks"}[world])


def along(found, mesh, axis):
    """What was sent along an axis: (kind, phase, bytes) and how often."""
    key = MESHES[mesh.removesuffix(" tokens")].keys()[axis]
    return Counter((kind, phase, size) for kind, phase, _, size, group in found["rows"] if group == key)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh", "model"), OF_TWO + OF_FOUR)
def test_losses_gradients_and_weights_are_those_of_whole_models(all_ranks, world, mesh, model):
    for rank in all_ranks(world):
        found = rank[f"{model} {mesh}"]
        assert found["loss"] < 2e-6
        assert found["gradients"] < 1e-5  # of the tensor's largest
        assert found["weights"] < 2e-6


@pytest.mark.parametrize(("world", "tried"), [(2, OF_TWO), (4, OF_FOUR)])
def test_every_mesh_that_divides_layers_is_tried(world, tried):
    """Those of whole layers are in test_strategies."""
    names = {mesh.removesuffix(" tokens") for _, mesh, _ in tried}
    found = {dataclasses.replace(MESHES[name], tensor=min(world, MESHES[name].tensor)) for name in names}
    degrees = itertools.product((1, 2, 4), (1, 2, 4), (2, 4))
    meshes = (Mesh(replicate=r, shard=s, tensor=t) for r, s, t in degrees)
    assert found == {mesh for mesh in meshes if mesh.size == world}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh"), WITH)
@pytest.mark.parametrize("way", ["checkpointing", "accumulation"])
def test_checkpointed_and_accumulated_gradients_are_those_of_whole_models(all_ranks, world, mesh, way):
    for rank in all_ranks(world):
        assert rank[f"{way} {mesh}"]["gradients"] < 1e-5
        assert rank[f"{way} {mesh}"]["weights"] < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh"), WITH)
def test_with_autocast_gradients_are_those_of_whole_models_to_its_precision(all_ranks, world, mesh):
    for rank in all_ranks(world):
        found = rank[f"bf16 {mesh}"]
        assert found["loss"] < 2e-3
        assert 1e-4 < found["gradients"] < 0.05  # bf16 has 8 bits of a number


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh"), WITH[:2])
def test_checkpointed_layers_send_again_in_backward(all_ranks, world, mesh):
    """Of a block all but what nothing of it depends on: the sum behind its last layer."""
    for rank in all_ranks(world):
        plain, again = (
            Counter(map(tuple, rank[f"{name} {mesh}"]["rows"])) for name in ("llama", "checkpointing")
        )
        assert not plain - again
        more = Counter((kind, phase) for kind, phase, *_ in (again - plain).elements())
        if mesh == "tp":
            assert more == {("all_reduce", "backward"): LAYERS}
        else:
            assert more == {("all_gather", "backward"): 2 * LAYERS, ("reduce_scatter", "backward"): LAYERS}


@pytest.mark.slow
def test_ranks_of_a_tensor_group_drop_the_same_activations_as_one_rank(all_ranks):
    for rank in all_ranks(2):
        found = rank["hidden dropout tp"]
        assert found["loss"] < 2e-6
        assert found["gradients"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh"), WITH[:2])
def test_dropout_within_heads_keeps_ranks_of_a_group_alike(all_ranks, world, mesh):
    found = [rank[f"dropout {mesh}"] for rank in all_ranks(world)]
    for one in found:
        same = next(other for other in found if other["reader"] == one["reader"])
        assert one["losses"] == same["losses"]
        assert one["kept"] == found[0]["kept"]  # the weights after two steps, on every rank
    assert found[0]["losses"][0] != pytest.approx(found[0]["losses"][1], rel=1e-6)


@pytest.mark.slow
def test_a_layer_adds_up_twice_forward_and_twice_backward(ranks):
    sent = along(ranks[0]["vit tp"], "tp", "tensor")
    tokens = 4 * 2 * (4 * 4 + 1) * 64
    assert sent == {
        ("all_reduce", "forward", tokens): 2 * LAYERS,
        ("all_reduce", "backward", tokens): 2 * LAYERS,
    }


@pytest.mark.slow
def test_a_synthetic_layer_adds_up_once_forward_and_once_backward(ranks):
    sent = along(ranks[0]["synthetic tp"], "tp", "tensor")
    assert sent == {("all_reduce", phase, 4 * 2 * 64): LAYERS for phase in ("forward", "backward")}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tied", "gpt2", "bert"])
def test_with_sequence_parallel_a_layer_gathers_and_scatters_tokens(ranks, model):
    """Twice in place of adding up; tokens are divided before the first layer and gathered behind the last."""
    sent = along(ranks[0][f"{model} tp tokens"], "tp", "tensor")
    norms = sent.pop(("all_reduce", "backward", 4 * 64))  # the gradients of weights and biases of norms
    assert norms == 2 * LAYERS * (1 if model == "tied" else 2)
    assert sent == {
        ("all_gather", "forward", ROWS): 2 * LAYERS + 1,
        ("reduce_scatter", "forward", ROWS): 2 * LAYERS,
        ("all_gather", "backward", ROWS): 2 * LAYERS + 1,
        ("reduce_scatter", "backward", ROWS): 2 * LAYERS,
    }


@pytest.mark.slow
def test_tokens_stay_divided_up_to_a_divided_vocabulary(ranks):
    sent = along(ranks[0]["llama tp tokens"], "tp", "tensor")
    assert sent["all_gather", "forward", ROWS] == 2 * LAYERS + 1
    assert sent["reduce_scatter", "backward", ROWS] == 2 * LAYERS + 1
    assert ("all_reduce", "backward", ROWS) not in sent
    assert sent["all_reduce", "backward", 4 * 64] == 2 * LAYERS + 1  # the last norm too


@pytest.mark.slow
def test_tokens_that_ranks_do_not_divide_are_filled_up(ranks):
    sent = along(ranks[0]["vit tp tokens"], "tp", "tensor")
    assert sent["all_gather", "forward", 4 * 2 * 20 * 64] == 2 * LAYERS + 1  # 17 tokens on four ranks


@pytest.mark.slow
def test_the_loss_of_a_divided_vocabulary_is_taken_from_its_parts(ranks):
    sent = along(ranks[0]["llama tp"], "tp", "tensor")
    assert sent["all_reduce", "forward", ROWS] == 2 * LAYERS
    assert sent["all_reduce", "backward", ROWS] == 2 * LAYERS + 1  # and what the last layer gets
    assert sent["all_reduce", "forward", 4 * 2 * 16] == 3  # maximum, sum and the target's part, of each token
    tied = along(ranks[0]["tied tp"], "tp", "tensor")
    assert tied["all_reduce", "backward", ROWS] == 2 * LAYERS


@pytest.mark.slow
def test_units_and_layers_have_communicators_of_their_own(ranks):
    for rank in ranks:
        found = rank["llama fsdp_tp"]
        assert {kind for kind, *_ in along(found, "fsdp_tp", "shard")} == {"all_gather", "reduce_scatter"}
        assert {kind for kind, *_ in along(found, "fsdp_tp", "tensor")} == {"all_reduce"}
        copies = along(rank["llama hsdp_tp"], "hsdp_tp", "replicate")
        assert {kind for kind, *_ in copies} == {"all_reduce"}
        units = {unit for *_, unit, _, _ in found["rows"]}
        assert units == set(range(len(found["units"]) + 1))  # the last is what divided layers send


@pytest.mark.slow
def test_every_wait_is_stamped(ranks):
    for rank in ranks:
        for found in rank.values():
            assert found["order"]
            assert found["waits"] >= len(found["rows"]) > 0
            assert all(unit >= 0 for _, _, unit, _, _ in found["rows"])


def test_axes_of_a_mesh():
    mesh = Mesh(replicate=2, shard=2, tensor=2)
    assert mesh.axes() == {
        "shard": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "replicate": ((0, 4), (1, 5), (2, 6), (3, 7)),
        "tensor": ((0, 1), (2, 3), (4, 5), (6, 7)),
    }
    assert [mesh.axis_of(group) for group in ((0, 2), (0, 4), (0, 1))] == ["shard", "replicate", "tensor"]
    assert Mesh(replicate=2, tensor=2).axis_of((0, 2)) == "replicate"
    assert len(set(mesh.keys().values()) | set(Mesh(replicate=2, shard=4).keys().values())) == 5


def test_what_cannot_be_divided_is_named():
    one = type("One", (), {"size": lambda _: 3})()
    work = language.llama(64, 1, 4, 4, 16, 128, 96, False, 32, 16)
    with pytest.raises(InputError, match="does not divide the model's 4"):
        divide(work, work.module, one)
    with pytest.raises(InputError, match="no layer that is known to be divided"):
        auto_plan(nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten()))
    linear = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    with pytest.raises(InputError, match=r"parallel\.tensor=3: does not divide 0, which has 64"):
        divide(dataclasses.replace(work, module=linear), linear, one)


def test_layers_in_turns_stop_at_others_with_parameters():
    layers = [
        nn.Linear(8, 32),
        nn.ReLU(),
        nn.Linear(32, 8),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 8),
    ]
    plan = auto_plan(nn.Sequential(*layers))
    assert {name: type(style) for name, style in plan.items()} == {"0": ColwiseParallel, "2": RowwiseParallel}


def test_a_model_of_which_most_would_stay_whole_is_refused():
    head = [nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)]
    with pytest.raises(InputError, match=r"parallel\.tensor: 0 \(Conv2d\) is not known to be divided"):
        auto_plan(nn.Sequential(nn.Conv2d(3, 64, 7), nn.AdaptiveAvgPool2d(1), *head))


def test_sequence_parallel_is_refused_where_tokens_cannot_be_divided():
    one = type("Two", (), {"size": lambda _: 2})()
    work = language.llama(64, 1, 4, 4, 16, 128, 96, False, 32, 16)
    linear = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    with pytest.raises(InputError, match=r"parallel\.sequence=true: Sequential repeats no block"):
        divide(dataclasses.replace(work, module=linear), linear, one, sequence=True)
    with pytest.raises(InputError, match="has a tensor_plan and no sequence_plan"):
        divide(
            dataclasses.replace(work, tensor_plan={"x": ColwiseParallel()}), work.module, one, sequence=True
        )


def test_a_layer_among_divided_ones_that_is_not_known_is_refused():
    work = language.llama(64, 1, 4, 4, 16, 128, 96, False, 32, 16)
    work.module.model.model.layers[0].self_attn.q_norm = nn.LayerNorm(16)
    with pytest.raises(InputError, match=r"self_attn\.q_norm \(LayerNorm\) lies among divided layers"):
        auto_plan(work.module)
