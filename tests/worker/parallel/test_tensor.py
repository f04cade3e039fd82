"""Models whose layers are divided over four real ranks train as whole ones do, and tell what they send."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from scaling.errors import InputError
from scaling.spec.parallel import Mesh
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
LAYERS, ROWS = 2, 4 * 2 * 16 * 64
"""Layers, and bytes of the activations between them: two samples of 16 tokens."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(SCRIPT, 4, tmp_path_factory.mktemp("ranks") / "store")


def along(found, mesh, axis):
    """What was sent along an axis: (kind, phase, bytes) and how often."""
    key = MESHES[mesh].keys()[axis]
    return Counter((kind, phase, size) for kind, phase, _, size, group in found["rows"] if group == key)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", MODELS)
def test_losses_and_weights_are_those_of_whole_models(ranks, model, mesh):
    for rank in ranks:
        found = rank[f"{model} {mesh}"]
        assert found["loss"] < 2e-6
        assert found["weights"] < 2e-6


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
