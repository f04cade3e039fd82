"""The mesh of a strategy has the degrees that the strategy has."""

from dataclasses import replace

import pytest

from scaling.settings.parallel import PIPELINED, STRATEGIES, Mesh, Parallel

LACKS = [
    ("ddp", "shard"),
    ("ddp", "tensor"),
    ("ddp", "pipeline"),
    ("fsdp", "tensor"),
    ("fsdp", "pipeline"),
    ("hsdp", "tensor"),
    ("hsdp", "pipeline"),
    ("hsdp_tp", "pipeline"),
]


@pytest.mark.parametrize(("name", "degree"), LACKS)
def test_a_degree_that_a_strategy_lacks_changes_nothing(name, degree):
    """As in a plan.json that was changed after the ranks had read it."""
    usual = Parallel.preset(name, 4)
    changed = replace(usual, **{degree: 3})
    assert [changed.mesh(n) for n in (4, 12)] == [usual.mesh(n) for n in (4, 12)]


def test_only_a_loop_of_ones_own_has_stages():
    stages = {name: Parallel(name=name, replicate=-1, pipeline=3).mesh(6).pipeline for name in STRATEGIES}
    assert set(stages.values()) == {1}
    assert Parallel(name=PIPELINED, replicate=1, pipeline=3).mesh(3) == Mesh(pipeline=3)
