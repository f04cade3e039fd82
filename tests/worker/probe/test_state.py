"""What a baseline changes is put back, as it was and where it was."""

import pytest
import torch

from scaling.worker.probe.baseline import State


class Rounding(torch.optim.Optimizer):
    """Parameters in 16 bits, moments in 32, a count on the host: as fused optimizers keep them."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "seen": [0]})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["seen"].append(len(group["seen"]))
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"moment": torch.zeros(parameter.shape), "count": 0, "product": torch.ones(())}
                state["moment"] += parameter.grad.float() / 3
                state["product"] *= 0.9
                state["count"] += 1
                parameter.sub_(group["lr"] * state["moment"])


def stepped(module, optimizer):
    module(torch.ones(2, 4, dtype=torch.bfloat16)).square().sum().backward()
    optimizer.step()


def told(optimizer):
    return [
        (state["moment"].tolist(), state["moment"].dtype, float(state["product"]), state["count"])
        for state in optimizer.state.values()
    ] + [(group["lr"], list(group["seen"])) for group in optimizer.param_groups]


@pytest.fixture
def training():
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 4).bfloat16()
    return module, Rounding(module.parameters())


def test_an_optimizers_tensors_keep_their_type_and_are_the_same_objects(training):
    module, optimizer = training
    stepped(module, optimizer)
    state = State(module, [optimizer], [])
    before = told(optimizer)
    tensors = [id(s["moment"]) for s in optimizer.state.values()]
    for _ in range(3):
        stepped(module, optimizer)
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.param_groups[0]["added"] = True
    assert told(optimizer) != before
    state.restore()
    assert told(optimizer) == before
    assert tensors == [id(s["moment"]) for s in optimizer.state.values()]
    assert "added" not in optimizer.param_groups[0]


def test_state_that_came_meanwhile_is_gone(training):
    module, optimizer = training
    state = State(module, [optimizer], [])
    stepped(module, optimizer)
    state.restore()
    assert not optimizer.state
    stepped(module, optimizer)
    assert [s["count"] for s in optimizer.state.values()] == [1, 1]
