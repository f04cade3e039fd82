"""The line that a probe prints while the loop runs."""

import pytest

from scaling.records.format import StepRow
from scaling.worker.probe.recording import summary

MS = 1_000_000


def step(**waits):
    """100 ms: 10 of input, 30 of forward, 50 of backward, 10 of the optimizer; `waits` in ms are within these."""
    return StepRow(
        begin_ns=0,
        end_ns=100 * MS,
        input_ns=10 * MS,
        forward_ns=30 * MS,
        backward_ns=50 * MS,
        optimizer_ns=10 * MS,
        compute_end_ns=90 * MS - waits.pop("last", 0) * MS,
        sync_end_ns=90 * MS,
        **{f"{name}_wait_ns": ms * MS for name, ms in waits.items()},
    )


@pytest.mark.parametrize(
    ("waits", "forward", "backward"),
    [
        ({}, 30, 50),
        ({"last": 20}, 30, 30),
        ({"last": 20, "earlier": 10}, 30, 20),  # DDP that reduces in every micro-step
        ({"buffer": 5}, 25, 50),
        ({"forward": 12, "backward": 8}, 18, 42),  # fully_shard
    ],
)
def test_every_wait_counts_as_communication_and_is_taken_out_of_its_phase(waits, forward, backward):
    sent = 80 - forward - backward
    expected = (
        f"input 10%, forward {forward}%, backward {backward}%, optimizer 10%, communication {sent}%, host 0%"
    )
    assert summary(7, [step(**waits)] * 3) == f"scaling: step 7: 100.0 ms on rank 0; {expected}"
