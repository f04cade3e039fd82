"""A training with transformers' Trainer and one line for the probe; gradients are accumulated over two batches.

torchrun --standalone --nproc-per-node=2 examples/with_trainer.py --cpu
scaling analyze runs/<date>/<time>-<hash>
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from scaling.integrations.huggingface import ScalingCallback

WORDS, LENGTH = 50, 16


class Tokens(Dataset):
    """Random tokens."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--run-dir")
    options = parser.parse_args()

    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            use_cpu=options.cpu,
            report_to=[],
            save_strategy="no",
        )
        callback = ScalingCallback(run_dir=options.run_dir)  # the line
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), callbacks=[callback]).train()


if __name__ == "__main__":
    main()
