"""Language models: GPT-2 (Radford et al. 2019), BERT (Devlin et al. 2019), Llama (Touvron et al. 2023)."""

from __future__ import annotations

import torch
from torch import nn

from scaling.worker.data.workload import MakeBatch, Workload
from scaling.worker.models.extra import Logits, adamw, built, sizes

MASKED = 0.15
"""Share of BERT's tokens that are masked and predicted."""
IGNORED = -100
"""Target value that cross_entropy ignores."""


def gpt2(width: int, layers: int, heads: int, vocabulary: int, context: int, sequence: int) -> Workload:
    """GPT-2: next-token prediction over `sequence` tokens, at most `context`."""
    model = built(
        "GPT2",
        "LMHeadModel",
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=context,
        use_cache=False,
        bos_token_id=vocabulary - 1,
        eos_token_id=vocabulary - 1,
    )
    return _next_token(Logits(model), vocabulary, sequence)


def llama(
    width: int,
    layers: int,
    heads: int,
    key_value_heads: int,
    head: int,
    feedforward: int,
    vocabulary: int,
    tied: bool,
    context: int,
    sequence: int,
) -> Workload:
    """Llama: next-token prediction. `tied`: the last layer shares the embedding's weights. `head`: a head's width."""
    model = built(
        "Llama",
        "ForCausalLM",
        **sizes(width, layers, heads, feedforward),
        num_key_value_heads=key_value_heads,
        head_dim=head,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=context,
        use_cache=False,
    )
    return _next_token(Logits(model), vocabulary, sequence)


def bert(
    width: int, layers: int, heads: int, feedforward: int, vocabulary: int, context: int, sequence: int
) -> Workload:
    """BERT: prediction of masked tokens."""
    model = built(
        "Bert",
        "ForMaskedLM",
        **sizes(width, layers, heads, feedforward),
        vocab_size=vocabulary,
        max_position_embeddings=context,
    )
    mask_token = min(103, vocabulary - 1)  # [MASK] of BERT's vocabulary

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(vocabulary, (n, sequence), generator=generator)
        hidden = torch.rand(n, sequence, generator=generator) < MASKED
        hidden[:, 0] = True  # mask at least one token, since the mean over none is NaN
        return tokens.masked_fill(hidden, mask_token), tokens.masked_fill(~hidden, IGNORED)

    return _of_tokens(Logits(model), make_batch, sequence)


def _next_token(module: nn.Module, vocabulary: int, sequence: int) -> Workload:
    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(vocabulary, (n, sequence + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return _of_tokens(module, make_batch, sequence)


def _of_tokens(module: nn.Module, make_batch: MakeBatch, sequence: int) -> Workload:
    return Workload(
        module=module, make_batch=make_batch, loss=_cross_entropy, optimizer=adamw, tokens_per_sample=sequence
    )


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Loss of logits (n, sequence, vocabulary) against targets (n, sequence)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
