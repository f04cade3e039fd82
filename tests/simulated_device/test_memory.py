"""Peak memory of a rank against arithmetic: parameters, gradients, optimizer, and what is gathered at the peak.

P parameters in fp32, AdamW with its fused form: 4 P + 4 P + 8 P bytes, over the ranks that share them. With a batch of
16 tokens activations are small beside that.
"""

from __future__ import annotations

import pytest

from simulated_device.test_alone import simulated

XL = {"width": 2048, "layers": 24, "heads": 16, "vocabulary": 50257, "context": 2048, "sequence": 16}
GPT2 = "scaling.worker.models.language.gpt2"
LLAMA_7B = {
    "width": 4096,
    "layers": 32,
    "heads": 32,
    "key_value_heads": 32,
    "head": 128,
    "feedforward": 11008,
    "vocabulary": 32000,
    "tied": False,
    "context": 2048,
    "sequence": 16,
}
EMBEDDING = 50257 * 2048 * 4
POSITIONS = 2048 * 2048 * 4
LAYER = (12 * 2048**2 + 13 * 2048) * 4


def peak(mesh, model, args, capacity_bytes=10**12):
    return simulated(
        mesh, 8, model=model, args=args, capacity_bytes=capacity_bytes, batch=1, fused_optimizer=True
    )


def test_ddp_holds_everything_and_three_gradients_of_a_tied_embedding():
    """Autograd has the embedding's gradient, the last layer's and their sum before DDP copies it into its bucket."""
    found = peak("ddp", GPT2, XL)
    whole = found.parameters
    assert whole == 1_315_723_264
    assert found.memory.parameters_bytes == found.memory.gradients_bytes == 4 * whole
    assert found.memory.optimizer_bytes == pytest.approx(8 * whole, rel=1e-3)
    assert found.memory.peak_bytes == pytest.approx(16 * whole + 3 * EMBEDDING, rel=0.01)


def test_fsdp_holds_its_shards_and_what_is_gathered_at_the_end_of_backward():
    """The root unit's parameters and gradients, and the input of the last layer's reduce-scatter. Its own shard of
    gradients is not made yet."""
    found = peak("fsdp", GPT2, XL)
    whole, root = 4 * found.parameters, EMBEDDING + POSITIONS
    assert found.memory.parameters_bytes == pytest.approx(whole / 8, rel=0.01)
    assert found.memory.optimizer_bytes == pytest.approx(2 * whole / 8, rel=0.01)
    gathered = root + 3 * EMBEDDING + POSITIONS + LAYER - root / 8
    assert found.memory.peak_bytes == pytest.approx(4 * whole / 8 + gathered, rel=0.01)


def test_seven_billion_fit_with_fsdp_and_not_with_ddp():
    model = "scaling.worker.models.language.llama"
    assert peak("ddp", model, LLAMA_7B, capacity_bytes=80 * 10**9).out_of_memory
    found = peak("fsdp", model, LLAMA_7B, capacity_bytes=80 * 10**9)
    assert found.parameters == 6_738_415_616
    shards = 16 * found.parameters / 8
    assert shards < found.memory.peak_bytes < 80 * 10**9
