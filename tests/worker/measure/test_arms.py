"""One optimizer a launch, and one wrapper at a time, made and freed with its block."""

import dataclasses
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from support.workloads import towards_zero
from torch.nn.parallel import DistributedDataParallel

from scaling.config.compose import requests
from scaling.settings.plan import Trial
from scaling.settings.run import Inject
from scaling.settings.schedule import dropped_steps, settling_steps
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import sgd
from scaling.worker.measure.arms import Arms, grown
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.prepare import fits
from scaling.worker.parallel import ddp
from scaling.worker.parallel.ddp import wrap
from scaling.worker.parallel.groups import Group

ASKED = (
    "model=mlp",
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "batch_per_rank=8",
)


@pytest.fixture
def wrappers(monkeypatch):
    """All wrappers that were made and are still held by something."""
    held = weakref.WeakSet()

    def noted(*args, **settings):
        made = wrap(*args, **settings)
        held.add(made)
        return made

    monkeypatch.setattr(ddp, "wrap", noted)
    return held


@pytest.fixture
def groups(one_rank):
    """This rank's, as if there were another."""
    alone = dist.new_group([0])
    return {key: Group(key=key, ranks=(0,), control=alone, data=alone) for key in (1, 2)}


def arms_of(groups, spec, variant=None, *, feed=None, optimizer=sgd, device=None):
    """Those of two ranks, with a linear layer."""
    workload = towards_zero(torch.nn.Linear(2, 2), make_batch=lambda n, g: None, optimizer=optimizer)
    return Arms(
        spec=spec,
        variant=variant,
        trial=Trial(world_size=2, hosts=1, batch=8),
        workload=workload,
        optimizer=workload.optimizer(workload.module.parameters()),
        groups=groups,
        device=device or Cpu(),
        precision=Precision("fp32", "cpu"),
        faults=Faults(Inject(), rank=0, first_on_host=False),
        feed=feed or (lambda batch: Feed([(torch.ones(batch, 2), torch.zeros(batch, 2))])),
    )


def spec_of(*more):
    (asked,) = requests("plan", [*ASKED, *more]).items
    return asked.spec


@pytest.mark.parametrize(
    ("changes", "feeds"),
    [(None, [8, 4]), ({"batch_per_rank": 16}, [8, 16])],
    ids=["a run, with its half batch", "two settings"],
)
def test_all_batches_are_there_before_any_wrapper(groups, wrappers, changes, feeds):
    made = []
    spec = spec_of()
    variant = None if changes is None else dataclasses.replace(spec, **changes)

    def feed(batch):
        made.append(batch)
        return Feed([(torch.ones(batch, 2), torch.zeros(batch, 2))])

    arms_of(groups, spec, variant, feed=feed)
    assert (made, len(wrappers)) == (feeds, 0)


def opened(arms, arm, finds_unused, **how):
    """(loop's module, steps of its wrapper) after one more step."""
    with arms.open(arm, **how) as one, one.detail.taking() as take:
        one.loop.stamped()
        taken = take(one.loop.forward_end_ns).collectives
        if taken is not None:
            assert {row.group for row in taken} <= {1 if arm == "ddp_solo" else 2}
            assert taken or finds_unused  # DDP tells no buckets' parameters then
        return one.loop.module, one.settled


@pytest.mark.parametrize("key", ["", "ddp.static_graph=true", "ddp.find_unused_parameters=true"])
def test_a_wrapper_lives_for_one_block_and_no_arm_sees_another_one_s(groups, wrappers, key):
    """Its hooks sit on the parameters: DDP would count the steps of other arms, and reduce wrongly or never."""
    arms = arms_of(groups, spec_of(*filter(None, [key])))
    begun = [p.detach().clone() for p in arms.module.parameters()]
    taken = 0
    for arm, how in (
        ("bare_one", {}),
        ("plain", {}),
        ("bare_all", {"half": True}),
        ("ddp_solo", {"detailed": True}),
        ("probe", {"detailed": True}),
        ("probe", {}),
        ("bare_all", {}),
        ("plain", {}),
    ):
        module, settled = opened(arms, arm, "unused" in key, **how)
        taken += settled + 1
        assert (settled > 0) == isinstance(module, DistributedDataParallel) == (not arm.startswith("bare"))
        del module
        assert not wrappers
    alone = torch.nn.Linear(2, 2)
    alone.load_state_dict(dict(zip(("weight", "bias"), begun, strict=True)))
    optimizer = sgd(alone.parameters())
    for _ in range(taken):
        torch.nn.functional.mse_loss(alone(torch.ones(8, 2)), torch.zeros(8, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found, expected in zip(arms.module.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(found, expected)


def test_a_wrapper_is_freed_where_its_block_fails(groups, wrappers):
    arms = arms_of(groups, spec_of())
    with pytest.raises(RuntimeError, match="in mid-block"), arms.open("plain"):
        raise RuntimeError("in mid-block")
    gc.collect()  # the exception's frames
    assert not wrappers


def test_the_try_includes_the_optimizer_and_needs_no_peer(groups, wrappers):
    """Its state would run out of memory only later, when others wait for this rank."""
    arms = arms_of({**groups, 2: groups[1]}, spec_of(), optimizer=torch.optim.AdamW)
    assert fits(arms)
    assert not wrappers
    held = arms.optimizer.state[next(iter(arms.module.parameters()))]
    assert (held["step"], held["exp_avg_sq"].shape) == (2, (2, 2))
    assert all(p.grad is None for p in arms.module.parameters())


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_try_that_does_not_fit_leaves_neither_gradients_nor_a_wrapper(groups, wrappers, error):
    arms = arms_of(groups, spec_of())

    def full(_parameter):
        raise error("full")

    arms.module.bias.register_post_accumulate_grad_hook(full)
    assert not fits(arms)
    assert all(p.grad is None for p in arms.module.parameters())
    gc.collect()
    assert not wrappers


def test_other_errors_of_the_try_are_no_lack_of_memory(groups):
    arms = arms_of(
        groups, spec_of(), feed=lambda batch: Feed([(torch.ones(batch, 3), torch.zeros(batch, 2))])
    )
    with pytest.raises(RuntimeError, match="shapes"):
        fits(arms)


@pytest.mark.parametrize(
    ("key", "steps"), [("", 1), ("ddp.static_graph=true", 2), ("ddp.comm_hook=powersgd", 2)]
)
def test_a_block_drops_the_steps_that_settle_its_wrapper_and_one_more(key, steps):
    spec = spec_of(*filter(None, [key]))
    assert settling_steps(spec) == steps
    assert [dropped_steps(spec, arm, 1) for arm in ("bare_all", "ddp_solo", "plain")] == [
        1,
        steps + 1,
        steps + 1,
    ]
    assert dropped_steps(spec, "plain", 7) == 7


@pytest.mark.parametrize(
    ("before", "after", "took"), [(100, 490, 390), (100, 100, None), (100, 90, None), (None, None, None)]
)
def test_a_communicator_that_was_not_seen_to_take_memory_has_no_size(before, after, took):
    assert grown(before, after) == took
