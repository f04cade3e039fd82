"""What one counted step shows: FLOPs as torch's own counter has them, and each costly habit at its line."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from scaling.worker.checks import work as checks
from scaling.worker.checks.work import watching


def step(module, inputs):
    module(inputs).sum().backward()


def seen(module, inputs, home="cpu"):
    with watching(home) as work:
        step(module, inputs)
    return {s.what: s for s in work.sightings()}


class Body(nn.Module):
    """A linear layer with something done to its output."""

    def __init__(self, do) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.do = do

    def forward(self, x):
        return self.do(self.linear(x))


def test_flops_are_those_of_torchs_own_counter():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    inputs = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as expected:
        step(module, inputs)
    module.zero_grad()
    with watching("cpu") as work:
        step(module, inputs)
    assert sum(o.flops for o in work.operators()) == expected.get_total_flops() > 0


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_that_checkpointing_runs_again_is_told_from_the_step(use_reentrant):
    first, block = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    inputs = torch.randn(16, 8)

    def counted(through):
        with watching("cpu") as work:
            step(lambda x: through(first(x)), inputs)
        return sum(o.flops for o in work.operators()), work.recomputed_flops

    plain, none = counted(block)
    flops, again = counted(lambda x: checkpoint(block, x, use_reentrant=use_reentrant))
    assert none == 0
    assert again == 2 * 2 * 16 * 8 * 8  # both layers' forward
    assert flops == plain + again


def test_bytes_are_those_read_and_written_and_views_are_free():
    x = torch.randn(100)
    with watching("cpu") as work:
        _ = (x.view(10, 10).t() + 1).sum()
    traffic = {o.name: o.bytes for o in work.operators()}
    assert traffic == {"add": 800, "sum": 404}


def test_operators_know_their_layer_in_both_directions():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with watching("cpu") as work:
        step(module, torch.randn(3, 8))
    assert {o.layer for o in work.operators() if o.name == "addmm"} == {"0", "2"}
    assert next(o.layer for o in work.operators() if o.name == "threshold_backward") == "1"


def test_a_healthy_step_shows_nothing():
    assert seen(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)) == {}


def test_an_item_a_step_is_found_at_its_line():
    def do(y):
        return y * y.mean().item()

    found = seen(Body(do), torch.randn(2, 8))
    assert set(found) == {checks.HOST_SYNC}
    assert found[checks.HOST_SYNC].count == 1
    assert f"test_work.py:{do.__code__.co_firstlineno + 1}" in found[checks.HOST_SYNC].where


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizers_count_of_its_own_steps_is_none(foreach):
    """Adam keeps it on the host, whatever the device, and reads it for every parameter."""
    module = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=foreach)
    with watching("cpu") as work:
        module(torch.randn(2, 8)).sum().backward()
        optimizer.step()
    assert any(o.name.startswith(("add", "_foreach_add")) for o in work.operators())
    assert work.sightings() == ()


def test_no_file_of_code_stays_in_memory(capsys):
    linecache.clearcache()
    seen(Body(lambda x: print(x.sum().item()) or x), torch.randn(2, 8))
    assert not linecache.cache


def test_a_branch_on_a_tensor_is_one_too():
    assert checks.HOST_SYNC in seen(Body(lambda y: y if y.sum() > 0 else -y), torch.randn(2, 8))


def test_printing(capsys):
    def do(y):
        print("step", y.shape)
        return y

    found = seen(Body(do), torch.randn(2, 8))
    assert (found[checks.PRINT].count, list(found)) == (1, [checks.PRINT])
    assert "step" in capsys.readouterr().out


def test_float64_weights():
    found = seen(Body(lambda y: y).double(), torch.randn(2, 8, dtype=torch.float64))
    assert found[checks.FLOAT64].layer == "linear"


def test_an_input_left_on_the_cpu_and_moved_in_the_forward():
    class Moves(nn.Linear):
        def forward(self, x):
            return super().forward(x.to(self.weight.device))

    found = seen(Moves(8, 4, device="meta"), torch.randn(2, 8), home="meta")
    assert set(found) == {checks.PAGEABLE}
    assert "test_work.py" in found[checks.PAGEABLE].where


def test_an_input_left_on_the_cpu_and_not_moved_fails_as_the_rules_expect():
    module = nn.Linear(8, 4, device="meta")
    with pytest.raises(RuntimeError, match="expected device"), watching("meta"):
        module(torch.randn(2, 8))
