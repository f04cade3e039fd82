"""Loops as people write them: whatever a rank waits in, its own time says in which phase it is late."""

from pathlib import Path

import polars as pl
import pytest
import torch

from scaling.analysis.quality.untracked_traffic import UNSEEN
from scaling.analysis.run import derive
from scaling.records.paths import RunFolder
from scaling.records.tables import in_memory
from scaling.worker.probe.follow import Outermost
from scaling.worker.probe.phases import samples_of

SCRIPT = Path(__file__).with_name("any_ranks.py")
RANKS = 2
NAP_S = 0.03
PHASE = {
    "reduced_before": "forward",
    "closure": "optimizer",
    "fetched_between": "input",
    "by_hand": "optimizer",
    "stepped_within": "backward",
    "sharded": "forward",
    "replicated": "forward",
    "two_models": "optimizer",
    "one_of_two": "optimizer",
    "broadcast_first": "optimizer",
}
"""Where rank 1 sleeps in each loop, as the script has it."""
PHASES = ("input", "forward", "backward", "optimizer")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PHASE)
def test_losses_are_bitwise_what_they_are_without(ranks, kind):
    assert [rank[kind] for rank in ranks] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase"), PHASE.items())
def test_the_late_rank_and_its_phase(ranks, kept, kind, phase):
    assert ranks[0]["phases"] == PHASE
    _, tables, *_ = derive(RunFolder(kept / kind))
    steps = in_memory(tables.steps.filter(pl.col("arm") == "probe"))
    behind = pl.col("sync_end_ns") - pl.col("compute_end_ns") + pl.col("earlier_wait_ns")
    waits = {name: pl.col(f"{name}_wait_ns") for name in PHASES}
    waits |= {"forward": waits["forward"] + pl.col("buffer_wait_ns"), "backward": waits["backward"] + behind}
    rest = pl.col("end_ns") - pl.col("begin_ns") - pl.sum_horizontal(pl.col(f"{n}_ns") for n in PHASES)
    own = {name: pl.col(f"{name}_ns") - waits[name] for name in PHASES}
    own["host"] = rest - pl.col("host_wait_ns")
    times = (
        steps.group_by("rank").agg(**{name: value.quantile(0.25) for name, value in own.items()}).sort("rank")
    )
    more_ms = {name: (times[name][1] - times[name][0]) / 1e6 for name in own}
    assert max(more_ms, key=more_ms.get) == phase, more_ms
    assert more_ms[phase] == pytest.approx(1e3 * NAP_S, abs=10)
    assert sum(more_ms.values()) == pytest.approx(1e3 * NAP_S, abs=15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reduced_before", "broadcast_first"])
def test_a_wait_in_a_collective_of_the_loop_s_own_counts_as_skew(ranks, kept, kind):
    rebuilt, *_ = derive(RunFolder(kept / kind))
    analysis = rebuilt.analysis
    (point,) = analysis.points
    assert point.parts_ms.exposed_skew.value == pytest.approx(1e3 * NAP_S / RANKS, abs=6)
    assert point.parts_ms.exposed_transfer.value < point.parts_ms.exposed_skew.value / 2
    assert "optimizer" not in [verdict.cause for verdict in analysis.verdicts]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PHASE)
def test_a_forward_is_unseen_where_one_of_two_models_is_followed(ranks, kept, kind):
    rebuilt, tables, *_ = derive(RunFolder(kept / kind))
    assert ranks[0][kind]
    of_another = kind == "one_of_two"
    assert (in_memory(tables.blocks)["unseen_forwards"].sum() > 0) == of_another
    assert (UNSEEN in rebuilt.analysis.quality.warnings) == of_another


def test_samples_are_a_lists_items_where_these_are_samples():
    images = [torch.zeros(3, 8, 9) for _ in range(5)]
    rows = [torch.zeros(4, 2), torch.zeros(4, 2)]
    assert samples_of((images,), {}) == 5
    assert samples_of(([torch.zeros(7, 2), torch.zeros(9, 2)], [{}, {}]), {}) == 2
    assert samples_of((rows, [{"label": 1}, {"label": 0}]), {}) == 2
    assert samples_of((rows,), {}) == 4  # two inputs of a batch
    assert samples_of((), {"batch": {"tokens": torch.zeros(6, 2)}}) == 6
    assert samples_of((1.0,), {}) == 0


def test_only_outermost_modules_with_gradients_are_found():
    outer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    head, frozen = torch.nn.Linear(2, 1), torch.nn.Linear(2, 2).requires_grad_(False)
    outermost = Outermost(pytest.fail)
    try:
        head(outer(frozen(torch.ones(1, 2)))).sum().backward()
        with torch.no_grad():
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
    finally:
        outermost.close()
    assert outermost.modules == [outer, head]
    assert outermost.trained_by(torch.optim.SGD(head.parameters(), lr=0.1)) == [head]


@pytest.mark.slow  # torch.compile is slow to import
@pytest.mark.parametrize("kind", ["outermost", "inside", "in_place"])
def test_what_is_compiled_is_compiled_once_and_found_beside_others(kind):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    outer, beside = Called(Called(torch.nn.Linear(2, 2))), torch.nn.Linear(2, 1)
    model = torch.compile(outer, backend=backend, fullgraph=True) if kind == "outermost" else outer
    if kind == "inside":
        outer.within = torch.compile(outer.within, backend=backend, fullgraph=True)
    elif kind == "in_place":
        outer.within.compile(backend=backend, fullgraph=True)
    outermost = Outermost(pytest.fail)
    for step in range(4):
        if step == 2:
            outermost.close()
        beside(model(torch.ones(1, 2))).sum().backward()
        if step == 0:
            with pytest.raises(TypeError):
                model()
    assert outermost.modules == [model, beside]
    assert len(graphs) == 1
    assert not any(module._forward_hooks for module in model.modules())


class Called(torch.nn.Module):
    def __init__(self, within):
        super().__init__()
        self.within = within

    def forward(self, rows):
        return self.within(rows)
