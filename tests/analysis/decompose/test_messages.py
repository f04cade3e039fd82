"""Messages of a pipeline with made-up stamps: whom each wait is for, and how long of it the link takes."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from scaling.analysis.decompose.messages import read_messages
from scaling.analysis.decompose.turns import computed_bubble
from scaling.spec.parallel import Parallel, Pipeline, pair_key
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES, PROBE

SEND, RECV = KINDS.index("send"), KINDS.index("recv")
FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")
CLOCKS_NS = 10
NAMES = ("launch_ns", "wait_ns", "resume_ns")


def message(rank, peer, kind, launch, wait, resume, phase=FORWARD, size=64):
    """One message as its rank has it; `peer` is the other."""
    stamps = dict(zip(NAMES, (launch, wait, resume), strict=True))
    return {
        "rank": rank,
        "group": pair_key(rank, peer),
        "kind": kind,
        "phase": phase,
        "bytes": size,
        **stamps,
    }


def read(*messages, n=2, steps=1, blocks=1):
    """What is read of blocks whose steps all have these messages."""
    rows = [
        {"launch": 0, "block": block, "step": step, "seq": seq, "arm": PROBE, "detailed": True, **one}
        for block in range(blocks)
        for step in range(steps)
        for seq, one in enumerate(messages)
    ]
    waits = ("sync_end_ns", "compute_end_ns", "earlier_wait_ns", "backward_wait_ns", "buffer_wait_ns")
    own = [
        {
            "launch": 0,
            "block": block,
            "round": block,
            "step": step,
            "rank": rank,
            "arm": PROBE,
            "detailed": True,
        }
        | dict.fromkeys(waits, 0)
        | {"forward_wait_ns": 100}
        for block in range(blocks)
        for step in range(steps)
        for rank in range(n)
    ]

    def groups(rank, key):
        found = [sorted((rank, peer)) for peer in range(n) if peer != rank and pair_key(rank, peer) == key]
        return tuple(found[0]) if found else (rank,)

    found = read_messages(pl.DataFrame(own), pl.DataFrame(rows).lazy(), n, groups, CLOCKS_NS)
    values = {name: of[0, 0] for name, of in found.merged.items() if (0, 0) in of}
    kinds = [(one.kind, one.phase) for one in dict.fromkeys(found.sent)]
    return SimpleNamespace(**values, found=found, values=values, kinds=kinds)


def test_a_receiver_waits_for_its_sender_and_then_for_the_link():
    got = read(message(0, 1, SEND, 400, 0, 0), message(1, 0, RECV, 100, 120, 450))
    assert (2 * got.exposed_skew, 2 * got.exposed_transfer) == (280, 50)  # mean over two ranks
    assert (got.exposed_all, got.bucket_enqueue) == (100, 0)


def test_a_sender_waits_for_its_receiver_and_then_for_the_link():
    got = read(message(0, 1, SEND, 100, 120, 450), message(1, 0, RECV, 400, 401, 401))
    assert (2 * got.exposed_skew, 2 * got.exposed_transfer) == (280, 50)


def test_a_sender_that_went_on_before_its_receiver_came_waited_for_nobody():
    got = read(message(0, 1, SEND, 100, 120, 150), message(1, 0, RECV, 400, 401, 401))
    assert (2 * got.exposed_skew, 2 * got.exposed_transfer) == (0, 30)


def test_stamps_of_two_ranks_may_differ_by_their_clocks_error():
    got = read(message(0, 1, SEND, 100, 120, 150), message(1, 0, RECV, 150 + CLOCKS_NS, 170, 170))
    assert (2 * got.exposed_skew, 2 * got.exposed_transfer) == (30, 0)


def test_messages_that_are_one_operation_wait_once_for_the_latest():
    got = read(
        message(0, 1, SEND, 100, 100, 500),
        message(0, 1, RECV, 100, 100, 500, BACKWARD),
        message(1, 0, RECV, 150, 450, 450),
        message(1, 0, SEND, 420, 450, 450, BACKWARD),
    )
    assert (2 * got.exposed_skew, 2 * got.exposed_transfer) == (320, 80)
    place = got.kinds.index(("recv", "backward"))
    assert 2 * got.values[f"kind.{place}.exposed_skew"] == 320


def test_messages_both_ways_are_told_apart_by_their_order():
    """Of three ranks the middle one passes on: the k-th sent is the k-th received."""
    got = read(
        message(0, 1, SEND, 10, 0, 0, size=8),
        message(0, 1, SEND, 20, 0, 0, size=8),
        message(1, 0, RECV, 5, 5, 12),
        message(1, 2, SEND, 13, 0, 0, size=16),
        message(1, 0, RECV, 14, 14, 25),
        message(1, 2, SEND, 26, 0, 0, size=16),
        message(2, 1, RECV, 1, 1, 15),
        message(2, 1, RECV, 16, 16, 28),
        n=3,
    )
    assert 3 * got.exposed_skew == pytest.approx((10 - 5) + (20 - 14) + (13 - 1) + (26 - 16))
    assert 3 * got.exposed_transfer == pytest.approx((12 - 10) + (25 - 20) + (15 - 13) + (28 - 26))
    assert got.found.most_sent == 32
    assert [(one.kind, one.bytes, one.ranks, one.axis) for one in got.found.sent] == [
        ("send", 16, 2, "pipeline"),
        ("send", 16, 2, "pipeline"),
        ("recv", 64, 2, "pipeline"),
        ("recv", 64, 2, "pipeline"),
    ]


def test_sums_are_a_steps_mean_over_steps_of_a_block():
    pair = message(0, 1, SEND, 400, 0, 0), message(1, 0, RECV, 100, 120, 450)
    got = read(*pair, steps=3, blocks=2)
    assert 2 * got.exposed_skew == 280
    assert set(got.found.merged["exposed_skew"]) == {(0, 0), (0, 1)}


def test_a_block_with_a_message_that_one_rank_alone_has_is_left_out():
    got = read(message(0, 1, SEND, 400, 0, 0))
    assert (got.found.merged, got.found.sent) == ({}, ())


def test_a_message_of_a_pair_that_the_file_does_not_name_is_left_out():
    stranger = message(0, 1, SEND, 400, 0, 0) | {"group": pair_key(5, 6)}
    assert read(stranger, message(1, 0, RECV, 100, 120, 450)).found.merged == {}


@pytest.mark.parametrize(
    ("schedule", "stages", "ranks", "microbatches", "share"),
    [
        ("ScheduleGPipe", 1, 2, 4, 1 / 5),
        ("Schedule1F1B", 1, 4, 8, 3 / 11),
        ("ScheduleInterleaved1F1B", 2, 4, 8, 3 / 19),
        ("ScheduleInterleaved1F1B", 2, 4, 6, None),
        ("ScheduleZBVZeroBubble", 2, 4, 8, None),
    ],
)
def test_the_bubble_of_equal_stages(schedule, stages, ranks, microbatches, share):
    how = Pipeline(schedule=schedule, stages_per_rank=stages)
    assert computed_bubble(how, ranks, microbatches) == (share and pytest.approx(share))


def test_keys_of_pairs_are_those_of_nothing_else():
    pairs = [pair_key(a, b) for a in range(9) for b in range(a + 1, 9)]
    assert len(set(pairs)) == len(pairs)
    assert pair_key(3, 1) == pair_key(1, 3)
    others = [
        Parallel(name="hsdp_tp", replicate=2, shard=4, tensor=2).mesh(16).keys(),
        Parallel(name="tp", replicate=1, tensor=-1).mesh(2**12).keys(),
    ]
    assert max(pairs) < min(key for keys in others for key in keys.values())
