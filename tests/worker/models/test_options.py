"""What the options make of a workload, and what they say when there is nothing to make."""

import dataclasses

import pytest
import torch
from support.results import measure
from support.workloads import towards_zero
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import InputError
from scaling.settings.parallel import Parallel
from scaling.settings.run import Model, Spec
from scaling.settings.topology import Topology
from scaling.worker.models.options import compiled, loading, shaped


def spec(**options):
    topology = Topology(name="local", kind="local", hosts=1, ranks_per_host=1, device="cpu", backend="gloo")
    model = Model(name="m", target="m.m", args={})
    return Spec(
        model=model, topology=topology, world_sizes=(1,), mode="weak", batch_per_rank=1, global_batch=1,
        precision="fp32", measure=measure(), **options,
    )  # fmt: skip


def gradients(module, inputs):
    module(inputs).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


NORMED = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))


def on_accelerators(**more):
    one = spec(**more)
    topology = dataclasses.replace(one.topology, device="sim", backend="simccl")
    return dataclasses.replace(one, topology=topology, world_sizes=(1, 2))


@pytest.mark.parametrize("world_sizes", [(1,), (1, 2)])
def test_norms_over_all_ranks_do_not_run_on_a_cpu(world_sizes):
    with pytest.raises(
        InputError, match="SyncBatchNorm runs on accelerators alone, torch refuses it on a CPU"
    ):
        shaped(towards_zero(NORMED), dataclasses.replace(spec(), world_sizes=world_sizes))


def test_norms_over_all_ranks_are_measured_on_accelerators():
    assert shaped(towards_zero(NORMED), on_accelerators()).module is NORMED


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compile": True}, "compile=true"),
        ({"batches": (2, 4)}, "by cases"),
        ({"parallel": Parallel(name="fsdp")}, "parallel other than ddp"),
    ],
)
def test_where_the_waits_of_norms_would_not_be_told_apart(settings, said):
    with pytest.raises(InputError, match=said):
        shaped(towards_zero(NORMED), on_accelerators(**settings))


# Memory format


def test_channels_last_of_weights_and_of_what_is_loaded():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    options = spec(channels_last=True)
    shaped(towards_zero(module), options)
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    images, labels = loading(options, lambda batch: batch)([torch.ones(2, 3, 8, 8), torch.ones(2)])
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.is_contiguous()


def test_nothing_to_put_in_channels_last():
    with pytest.raises(InputError, match="no 4-dimensional parameter"):
        shaped(towards_zero(nn.Linear(2, 2)), spec(channels_last=True))


# Fused optimizers


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9)),
        lambda p: torch.optim.AdamW([{"params": list(p), "weight_decay": 0.3}], lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
    ids=["SGD", "Adam", "AdamW", "Adagrad"],
)
def test_a_fused_optimizer_takes_the_same_steps(optimizer):
    modules = []
    for fused in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(4, 4)
        made = shaped(towards_zero(module, optimizer=optimizer), spec(fused_optimizer=fused)).optimizer(
            module.parameters()
        )
        assert all(bool(group["fused"]) == fused for group in made.param_groups)
        for _ in range(3):
            gradients(module, torch.ones(1, 4))
            made.step()
            made.zero_grad()
        modules.append(module)
    assert torch.allclose(modules[0].weight, modules[1].weight, rtol=1e-5)


def test_an_optimizer_without_a_fused_form():
    made = shaped(towards_zero(nn.Linear(1, 1), optimizer=torch.optim.RMSprop), spec(fused_optimizer=True))
    with pytest.raises(InputError, match="RMSprop has no fused form"):
        made.optimizer(nn.Linear(1, 1).parameters())


# The compiler


@pytest.mark.slow
def test_every_wrapper_compiles_its_own_graphs_cut_at_its_buckets(one_rank, monkeypatch):
    """Taken over from a bare module, one graph would bring all gradients at once, at the end."""
    from torch._inductor import compile_fx

    graphs = []

    def eager(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compile_fx, "compile_fx", eager)
    module = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])  # 1 MiB each
    bare = compiled(module)
    ddp = [DistributedDataParallel(compiled(module), bucket_cap_mb=1) for _ in range(2)]
    counts = []
    for wrapper in (bare, *ddp, bare, *ddp):
        wrapper(torch.ones(2, 512)).sum().backward()
        counts.append(len(graphs))
    assert counts[0] == 1
    assert counts[1] > 2
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[3:] == [counts[2]] * 3  # and keeps them


def test_options_are_off_unless_asked_for():
    module = nn.Linear(2, 2)
    same = towards_zero(module)
    assert shaped(same, spec()) is same
