"""Language models: GPT-2 (Radford et al. 2019), BERT (Devlin et al. 2019), Llama (Touvron et al. 2023)."""

from __future__ import annotations

import torch
from torch import nn

from scaling.worker.models.extra import Logits, adamw, transformers
from scaling.worker.workload import Workload

MASKED = 0.15
"""Of BERT's tokens: hidden from it, and asked for."""
IGNORED = -100
"""A target that cross_entropy leaves out."""


def gpt2(width: int, layers: int, heads: int, vocabulary: int, context: int, sequence: int) -> Workload:
    """Next-token prediction over `sequence` tokens of at most `context`."""
    package = transformers()
    config = package.GPT2Config(
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=context,
        use_cache=False,
        bos_token_id=vocabulary - 1,
        eos_token_id=vocabulary - 1,
    )
    return _next_token(Logits(package.GPT2LMHeadModel(config)), vocabulary, sequence)


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
    """As `gpt2`; `tied`: the last layer shares the embedding's weights. `head` is the width of one."""
    package = transformers()
    config = package.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head,
        intermediate_size=feedforward,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=context,
        use_cache=False,
    )
    return _next_token(Logits(package.LlamaForCausalLM(config)), vocabulary, sequence)


def bert(
    width: int, layers: int, heads: int, feedforward: int, vocabulary: int, context: int, sequence: int
) -> Workload:
    """Prediction of masked tokens."""
    package = transformers()
    config = package.BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=feedforward,
        vocab_size=vocabulary,
        max_position_embeddings=context,
    )
    mask_token = min(103, vocabulary - 1)  # [MASK] of BERT's vocabulary

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(vocabulary, (n, sequence), generator=generator)
        hidden = torch.rand(n, sequence, generator=generator) < MASKED
        hidden[:, 0] = True  # never none at all, of which a mean would be no number
        return tokens.masked_fill(hidden, mask_token), tokens.masked_fill(~hidden, IGNORED)

    module = Logits(package.BertForMaskedLM(config))
    return Workload(module=module, make_batch=make_batch, loss=_cross_entropy, optimizer=adamw)


def _next_token(module: nn.Module, vocabulary: int, sequence: int) -> Workload:
    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(vocabulary, (n, sequence + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Workload(module=module, make_batch=make_batch, loss=_cross_entropy, optimizer=adamw)


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(n, sequence, vocabulary) against (n, sequence)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
