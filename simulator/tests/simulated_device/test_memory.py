"""Peak memory of a rank against arithmetic: parameters, gradients, optimizer, and what is gathered at the peak.

P parameters in fp32, AdamW with its fused form: 4 P + 4 P + 8 P bytes, over the ranks that share them. With a batch of
16 tokens activations are small beside that.
"""

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
LLAMA_70B = LLAMA_7B | {"width": 8192, "layers": 80, "heads": 64, "key_value_heads": 8, "feedforward": 28672}
LLAMA = "scaling.worker.models.language.llama"
EMBEDDING = 50257 * 2048 * 4
POSITIONS = 2048 * 2048 * 4
LAYER = (12 * 2048**2 + 13 * 2048) * 4


def peak(mesh, model, args, capacity_bytes=10**12, ranks=8, **changes):
    return simulated(
        mesh,
        ranks,
        model=model,
        args=args,
        capacity_bytes=capacity_bytes,
        batch=1,
        fused_optimizer=True,
        **changes,
    )


def layer_parameters(args):
    """Attention's four matrices, the three of the feed-forward part, and two norms."""
    width, kept = args["width"], args["key_value_heads"] * args["head"]
    return 2 * width * (width + kept) + 3 * width * args["feedforward"] + 2 * width


def ends_parameters(args):
    """Both ends of the model and the last norm: fully_shard's root unit."""
    return 2 * args["vocabulary"] * args["width"] + args["width"]


def parameters(args):
    return args["layers"] * layer_parameters(args) + ends_parameters(args)


def sharded(args, ranks):
    """Bytes in the backward of the last layer but one to run it: shards, the root unit with the gradient of its last
    matrix, this layer and the one fetched after it, this layer's gradients and the input of the reduce-scatter of the
    one before. Shards of gradients are not made yet for the root and these two layers."""
    shards = 16 * parameters(args) / ranks
    root, layer = 4 * ends_parameters(args), 4 * layer_parameters(args)
    last = 4 * args["vocabulary"] * args["width"]
    return shards + root + last + 4 * layer - (root + 2 * layer) / ranks


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
    replicated = peak("ddp", LLAMA, LLAMA_7B, capacity_bytes=80 * 10**9)
    assert replicated.out_of_memory
    found = peak("fsdp", LLAMA, LLAMA_7B, capacity_bytes=80 * 10**9)
    assert found.failed is None
    assert replicated.parameters == found.parameters == 6_738_415_616


def test_ddp_holds_seven_billion_and_a_gradient_of_the_embedding():
    """Where both ends of the model have weights of their own, one of them is copied into its bucket at the end."""
    found = peak("ddp", LLAMA, LLAMA_7B)
    assert found.parameters == parameters(LLAMA_7B) == 6_738_415_616
    end = 4 * LLAMA_7B["vocabulary"] * LLAMA_7B["width"]
    assert found.memory.peak_bytes == pytest.approx(16 * found.parameters + end, rel=0.01)


def test_fsdp_holds_shards_of_seven_billion_and_what_four_layers_take():
    found = peak("fsdp", LLAMA, LLAMA_7B)
    assert found.memory.peak_bytes == pytest.approx(sharded(LLAMA_7B, 8), rel=0.01)


@pytest.mark.parametrize(("of", "fits"), [(1.02, True), (0.98, False)])
def test_seventy_billion_run_out_of_memory_where_arithmetic_says_so(of, fits):
    needed = sharded(LLAMA_70B, 16)
    found = peak("fsdp", LLAMA, LLAMA_70B, ranks=16, capacity_bytes=int(of * needed), checkpointing=True)
    assert found.out_of_memory is not fits
    assert (found.failed is None) is fits
