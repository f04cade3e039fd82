"""One rank that runs cases in this process."""

import pytest
import torch
import torch.distributed as dist
from support.workloads import towards_zero

from scaling.config.compose import requests
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.memory import Limit
from scaling.worker.cases.programs import Training
from scaling.worker.cases.runner import Jury
from scaling.worker.parallel.groups import Group
from scaling.worker.session.control import Control

LOCAL = ("model=mlp", "topology=local", "topology.device=cpu", "topology.ranks_per_host=1", "world_sizes=[1]")


def spec_of(*overrides):
    (request,) = requests("plan", [*LOCAL, *overrides]).items
    return request.spec


class Picky(torch.nn.Module):
    """Batch normalisation, which cannot train on one sample, behind what raises at batches that it does not take."""

    def __init__(self, refuse=lambda _samples: None):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.refuse = refuse

    def forward(self, x):
        error = self.refuse(len(x))
        if error is not None:
            raise error
        return self.layers(x)


@pytest.fixture
def groups(one_rank):
    return {1: Group(key=1, ranks=(0,), control=None, data=dist.new_group([0]))}


@pytest.fixture
def control():
    return Control(dist.HashStore(), 0)


@pytest.fixture
def jury(control):
    return Jury(control, Cpu(), Limit(), rank=0)


@pytest.fixture
def training(groups):
    """training(*overrides, module): what trains it."""

    def made(*overrides, module):
        workload = towards_zero(module, 4)
        return Training(spec_of(*overrides), workload, groups, Cpu(), rank=0)

    return made


@pytest.fixture
def a_spec():
    return spec_of


@pytest.fixture
def picky():
    return Picky
