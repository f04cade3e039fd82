"""What is computed again in backward, and that it changes no gradient."""

import pytest
import torch
from support.workloads import towards_zero
from torch import nn

from scaling.errors import InputError
from scaling.worker.models.options import checkpoint_activations, repeated


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Counting(), Counting()

    def forward(self, inputs):
        return self.second(self.first(inputs))


def blocks(count):
    return nn.Sequential(*[nn.Sequential(Counting(), nn.ReLU()) for _ in range(count)])


def gradients_and_calls(module):
    """Gradients of one step, and how often each layer was computed."""
    layers = [m for m in module.modules() if isinstance(m, Counting)]
    for layer in layers:
        layer.calls = 0
    module.zero_grad()
    module(torch.ones(2, 4)).square().sum().backward()
    return [p.grad.clone() for p in module.parameters()], [layer.calls for layer in layers]


@pytest.mark.parametrize(
    ("make", "named", "calls"),
    [
        (Net, lambda net: (net.first,), [2, 1]),
        (lambda: blocks(4), lambda _: (), [2] * 4),
        (lambda: nn.Sequential(*[Counting() for _ in range(9)]), lambda _: (), [2] * 6 + [1] * 3),
    ],
    ids=["named blocks", "repeated blocks", "a Sequential in stretches, but for its last"],
)
def test_the_same_gradients_with_parts_computed_again(make, named, calls):
    torch.manual_seed(0)
    module = make()
    expected, once = gradients_and_calls(module)
    undo = checkpoint_activations(towards_zero(module, blocks=named(module)))
    gradients, found = gradients_and_calls(module)
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients, strict=True))
    assert found == calls
    with torch.no_grad():
        module(torch.ones(1, 4))
    undo()
    assert gradients_and_calls(module)[1] == once == [1] * len(calls)


def test_a_forward_of_the_module_s_own_is_there_again_afterwards():
    net = Net()
    own = net.first.forward = lambda inputs: inputs
    checkpoint_activations(towards_zero(net, blocks=(net.first,)))()
    assert net.first.forward is own


def test_less_is_kept_for_backward():
    def kept(module):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            module(torch.ones(2, 4)).sum()
        return len(saved)

    module = blocks(4)
    plain = kept(module)
    checkpoint_activations(towards_zero(module))
    assert kept(module) < plain


def test_the_blocks_of_a_model_are_what_it_repeats():
    assert len(repeated(blocks(4))) == 4
    assert repeated(Counting()) == []


def test_nothing_to_checkpoint():
    with pytest.raises(InputError, match="nothing to checkpoint"):
        checkpoint_activations(towards_zero(Net()))
