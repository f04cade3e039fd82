"""What a worker writes down: one JSON line a step, positional integers, nanoseconds and bytes.

The record is the same for the harness's own loop and for anyone else's. A rank file is

    {"t":"head", "schema":1, "rank":..., "host":..., "groups":{...}}    once; with "plan" where no plan.json is
    {"t":"clock", ...}                                                  offset to rank 0's clock
    {"t":"step", "b":block, "i":step, "s":[STEP_FIELDS], "c":[[COLLECTIVE_FIELDS], ...]}
    {"t":"block", ...BLOCK_FIELDS by name}                              after the block's last step
    {"t":"memory", "b":block, "host_bytes":..., "device_bytes":...}     what the rank held after it
    {"t":"pause", "time_ns":..., "gap_ns":...}                          an own loop did something else meanwhile
    {"t":"end", "state":"done"|"failed", "steps":..., "error":...}      an own loop came to its end

A block line lands after its steps, so a block without one was cut off and is not used.
Times are CLOCK_MONOTONIC_RAW of the rank's own host; 0 means "not taken".
"""

from __future__ import annotations

SCHEMA = 1

BARE_ONE = "bare_one"
BARE_ALL = "bare_all"
DDP_SOLO = "ddp_solo"
PLAIN = "plain"
PROBE = "probe"
VARIANT = "variant"
"""plain under other settings, beside plain itself: what `scaling verify` measures."""
REPLAY = "replay"
FABRIC = "fabric"
PAIRS = "pairs"
"""replay between ranks of two hosts, all pairs at once: tells the hosts' links apart."""

STEP_ARMS = (BARE_ONE, BARE_ALL, DDP_SOLO, PLAIN, PROBE, VARIANT)
"""Arms whose records are training steps."""

STEP_FIELDS = (
    "begin_ns",  # absolute
    "end_ns",  # absolute
    "input_ns",  # durations, summed over the micro-steps of accumulation
    "forward_ns",
    "backward_ns",  # calls of backward, waiting for communication included
    "optimizer_ns",
    "compute_end_ns",  # absolute: the last micro-step's backward compute is done
    "sync_end_ns",  # absolute: its gradients are reduced, backward() returned
    "earlier_wait_ns",  # duration: such waits of earlier micro-steps, which no_sync would spare
)
"""A plain block writes the first two only; the last may be left out where there was none."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

COLLECTIVE_FIELDS = (
    "seq",  # position within the step, the same on every rank
    "kind",  # index into COLLECTIVES
    "group",  # key of the head line's groups: the world size; -k in the k-th pairing of the pairs arm
    "bytes",  # payload of this rank
    "ready_ns",  # absolute: the bucket's last gradient was there
    "launch_ns",  # absolute: handed to the backend
    "done_ns",  # absolute: complete on this rank
)

BLOCK_FIELDS = (
    "id",  # the same on every rank
    "round",
    "world_size",
    "arm",
    "detailed",  # per-bucket stamps
    "solo_rank",  # bare_one: the rank that ran; else -1
    "batch",  # samples a rank and step
    "accumulation",
    "lead_in",  # steps at the start that were dropped from the timing
    "steps",  # timed steps
    "parameters",  # ddp_solo: [bytes, ready ns since the step's begin] of each, mean over the steps; else empty
    "begin_ns",
    "end_ns",
    "cpu_ns",  # CPU time of the process over the block
    "thread_cpu_ns",  # of the thread that runs the steps
    "delayed_ns",  # the same thread was ready to run and had no core; -1: the kernel does not tell
    "make_ns",  # mean time in which a data worker made one of the block's batches; -1: batches were made up
    "make_cpu_ns",  # CPU time of the same
)

SLOTS_WHOLE = 256
"""An own loop's rounds lie on a grid of slots. Up to this slot every one is taken."""


def generation(slot: int) -> int:
    """g: around this slot of an own loop every 2^g-th one is taken, so that the records stay bounded.

    Of all slots up to any one, those divisible by its 2^g are evenly spaced from the first step on,
    and there are SLOTS_WHOLE / 2 to SLOTS_WHOLE of them. Below 0 are the rounds of a baseline.
    """
    return (max(slot, 0) // SLOTS_WHOLE).bit_length()


CASE_FIELDS = (
    "case",  # its place among the run's cases
    "peak_bytes",  # the most memory that the process held in the block
)
"""Of a block in a run by cases (scaling/cases.py), beside BLOCK_FIELDS."""
