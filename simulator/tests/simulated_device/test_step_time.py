"""Real models on a simulated device of known rates: where their step goes, against the simulation's own tasks."""

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def timed(simulated_parts):
    return simulated_parts("kernels")


@pytest.mark.parametrize(
    ("index", "behind", "layer"), [(0, True, "layers.0.layer.2.normalization"), (1, False, "h.0.mlp.c_fc")]
)
def test_named_parts_explain_the_step_and_the_slow_kernels_are_named_with_their_layer(
    timed, index, behind, layer
):
    model, batch, slow, part = timed.MODELS[index]
    seen = timed.explained(model, batch, slow, timed.BEHIND_US if behind else timed.AHEAD_US)
    step = seen.line.step_ms.value
    assert seen.share >= timed.EXPLAINED
    for name, found, known in seen.figures(part):
        assert found == pytest.approx(known, abs=0.02 * step), name
    worst = seen.line.where.slowest[0]
    assert (f"aten::{worst.operator}", worst.part) == (slow, part)
    assert worst.layer.endswith(layer)
    assert worst.ms.value == pytest.approx(timed.SLOW * worst.least_ms.value, rel=0.15)
    assert seen.line.said.startswith("launch-bound" if behind else "memory-bound")
