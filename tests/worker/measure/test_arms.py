"""What a rank makes in its own time comes before what all make together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist

from scaling.config.compose import requests
from scaling.spec.plan import Trial
from scaling.spec.run import Inject
from scaling.worker.accelerator.devices import Device
from scaling.worker.accelerator.precision import Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.measure.arms import Arms
from scaling.worker.measure.inject import Faults
from scaling.worker.parallel.groups import Group

ASKED = (
    "model=mlp",
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "batch_per_rank=8",
)


class Looked(Device):
    """Says when a wrapper is about to be made, or was: its communicator is looked at then."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def foreign_bytes(self):
        self.log.append("wrapper")


@pytest.fixture
def groups(tmp_path):
    """This rank's, as if there were another."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    alone = dist.new_group([0])
    yield {key: Group(key=key, ranks=(0,), control=alone, data=alone) for key in (1, 2)}
    dist.destroy_process_group()


def arms_of(groups, spec, variant=None, *, device=None, feed=None, meet=lambda: None):
    """Those of two ranks, with a linear layer."""
    return Arms(
        spec=spec,
        variant=variant,
        trial=Trial(world_size=2, hosts=1, batch=8),
        workload=Workload(
            module=torch.nn.Linear(2, 2),
            make_batch=lambda n, g: None,
            loss=torch.nn.functional.mse_loss,
            optimizer=sgd,
        ),
        groups=groups,
        device=device or Device(),
        precision=Precision("fp32", "cpu"),
        faults=Faults(Inject(), rank=0, first_on_host=False),
        feed=feed or (lambda batch: Feed([(torch.ones(batch, 2), torch.zeros(batch, 2))])),
        meet=meet,
    )


@pytest.mark.parametrize(
    ("changes", "feeds"),
    [(None, [8, 4]), ({"batch_per_rank": 16}, [8, 16])],
    ids=["a run, with its half batch", "two settings"],
)
def test_all_batches_are_there_before_ranks_meet_and_wrap(groups, changes, feeds):
    log = []
    (asked,) = requests("plan", list(ASKED)).items
    variant = None if changes is None else dataclasses.replace(asked.spec, **changes)

    def feed(batch):
        log.append(batch)
        return Feed([(torch.ones(batch, 2), torch.zeros(batch, 2))])

    arms_of(groups, asked.spec, variant, device=Looked(log), feed=feed, meet=lambda: log.append("met"))
    assert log == [*feeds, "met", "wrapper", "wrapper"]


@pytest.mark.parametrize("key", ["static_graph", "find_unused_parameters"])
def test_where_ddp_counts_from_backward_to_backward_each_wrapper_has_its_own_module(groups, key):
    """Else it counts the others', and never reduces again, or in their midst."""
    (asked,) = requests("plan", [*ASKED, f"ddp.{key}=true"]).items
    arms = arms_of(groups, asked.spec)
    begun = [p.detach().clone() for p in arms.bare.module.parameters()]
    for loop in (arms.bare, arms.plain, arms.solo, arms.detailed, arms.bare, arms.plain):
        loop.plain()
    wrappers = (arms.plain, arms.solo, arms.detailed)
    assert len({id(p) for loop in wrappers for p in loop.module.parameters()}) == 3 * len(begun)
    for loop, steps in ((arms.bare, 2), (arms.plain, 2), (arms.solo, 1), (arms.detailed, 1)):
        alone = torch.nn.Linear(2, 2)
        alone.load_state_dict(dict(zip(("weight", "bias"), begun, strict=True)))
        optimizer = sgd(alone.parameters())
        for _ in range(steps):
            torch.nn.functional.mse_loss(alone(torch.ones(8, 2)), torch.zeros(8, 2)).backward()
            optimizer.step()
            optimizer.zero_grad()
        for found, expected in zip(loop.module.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(found, expected)


def test_wrappers_share_the_module_otherwise(groups):
    (asked,) = requests("plan", list(ASKED)).items
    arms = arms_of(groups, asked.spec)
    assert {id(p) for loop in arms.loops() for p in loop.module.parameters()} == {
        id(p) for p in arms.bare.module.parameters()
    }
