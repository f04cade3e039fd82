"""Skew apart from transfer, on steps small enough for pencil and paper.

Micro-steps that reduce one by one, because no_sync was left out: each ends in its own reductions.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.expected import MS
from support.tables import sent_in

from scaling.analysis.decompose.detailed import BlockStamps, cycles_of, merge
from scaling.analysis.network.channel import Channel


def merged(launch, done, compute_end=None, **more):
    """One step: `launch` and `done` by rank and bucket, `compute_end` by rank."""
    launch, done = (np.array([x], dtype=float) for x in (launch, done))
    ends = np.zeros(launch.shape[:2]) if compute_end is None else np.array([compute_end], dtype=float)
    nothing = np.zeros_like(ends)
    return merge(
        BlockStamps(
            begin=nothing,
            end=nothing,
            input=nothing,
            backward=nothing,
            optimizer=nothing,
            compute_end=ends,
            sync_end=np.maximum(ends, done.max(axis=2)),
            ready=launch,
            launch=launch,
            done=done,
            bytes=np.ones(launch.shape[2]),
            earlier_wait=nothing,
            buffer_wait=nothing,
            buffer_begin=np.zeros((*nothing.shape, 0)),
            buffer_end=np.zeros((*nothing.shape, 0)),
            **more,
        )
    )


FIFO = Channel.of("nccl")


def test_a_collective_runs_from_the_latest_launch_to_the_latest_done():
    found = merged(launch=[[1], [4]], done=[[9], [10]])
    assert (found.released[0, 0], found.finished[0, 0]) == (4, 10)
    assert found.transfer[0, 0] == found.busy[0] == 6


@pytest.mark.parametrize(
    ("launch", "done", "transfer", "busy"),
    [
        ([[0, 2], [0, 2]], [[6, 10], [6, 10]], [2 + 4 / 2, 4 / 2 + 4], 10),
        ([[0, 0, 0]], [[9, 9, 9]], [3, 3, 3], 9),
        ([[0, 1, 5]], [[3, 4, 9]], [1 + 2 / 2, 2 / 2 + 1, 4], 4 + 4),
    ],
    ids=["two overlap", "three overlap", "idle in a gap"],
)
def test_the_link_is_busy_on_the_union_and_buckets_that_overlap_share_it(launch, done, transfer, busy):
    found = merged(launch=launch, done=done)
    assert found.transfer[0].tolist() == transfer
    assert found.busy[0] == busy


def test_waiting_for_a_late_rank_is_skew_and_not_transfer():
    found = merged(launch=[[10], [14]], done=[[20], [20]], compute_end=[10, 14])
    assert found.exposed_skew[0].tolist() == [4, 0]
    assert found.exposed_transfer[0].tolist() == [6, 6]


def test_a_late_rank_makes_its_peers_wait_between_buckets_too():
    # Rank 1 has the first bucket in time and the second 5 later than rank 0.
    found = merged(launch=[[2, 4], [2, 9]], done=[[6, 12], [6, 12]], compute_end=[4, 9])
    assert found.exposed_transfer[0].tolist() == [2 + 3, 3]
    assert found.exposed_skew[0].tolist() == [3, 0]


@pytest.mark.parametrize(
    ("done", "compute_end", "exposed"),
    [([[10], [10]], [7, 2], [3, 8]), ([[8], [10]], [0, 0], [8, 10])],
    ids=["hidden under a rank's own compute", "until a rank's own last bucket"],
)
def test_transfer_is_exposed_where_a_rank_waits_for_it(done, compute_end, exposed):
    found = merged(launch=[[0], [0]], done=done, compute_end=compute_end)
    assert found.exposed_transfer[0].tolist() == exposed


def test_a_rank_whose_compute_outlasts_the_link_waits_for_nothing():
    found = merged(launch=[[0], [0]], done=[[10], [10]], compute_end=[25, 4])
    assert (found.exposed_transfer[0, 0], found.exposed_skew[0, 0]) == (0, 0)
    assert found.exposed_transfer[0, 1] == 6


def test_stamps_in_the_wrong_order_by_clock_error_move_nothing_back():
    found = merged(launch=[[5], [7]], done=[[6], [6]], compute_end=[5, 6])
    assert found.transfer[0, 0] == found.busy[0] == 0


def test_on_a_first_in_first_out_communicator_the_bucket_that_waits_for_another_moves_nothing():
    found = merged(launch=[[0, 2], [1, 3]], done=[[11, 17], [11, 17]], compute_end=[4, 9], channel=FIFO)
    assert found.transfer[0].tolist() == [10, 6]
    assert found.busy[0] == 16
    assert found.exposed_transfer[0].tolist() == [13, 8]
    assert found.exposed_skew[0].tolist() == [0, 0]


def enqueued(enqueue, **more):
    return merged(
        launch=[[20], [22]],
        done=[[40], [40]],
        compute_end=[20, 22],
        channel=FIFO,
        enqueue=np.array([enqueue], dtype=float),
        host_ns=6.0,
        **more,
    )


def test_a_host_that_is_ahead_costs_nothing():
    found = enqueued([[2], [3]])
    assert (found.transfer[0, 0], found.exposed_enqueue[0].tolist()) == (18, [0, 0])
    assert found.exposed_skew[0].tolist() == [2, 0]


def test_a_collective_that_is_not_enqueued_yet_waits_for_the_host_and_not_for_the_link():
    found = enqueued([[19], [21]])
    assert (found.released[0, 0], found.transfer[0, 0]) == (27, 13)
    assert found.exposed_enqueue[0].tolist() == [5, 5]
    assert found.exposed_skew[0].tolist() == [2, 0]
    assert found.exposed_transfer[0].tolist() == [13, 13]


def test_what_a_stream_lies_behind_its_own_communicator_is_not_counted_and_behind_another_one_is():
    """The second one's stream comes to it at 10, when the first is done: it moves nothing before."""
    times = {"launch": [[0, 4]], "done": [[10, 16]], "start": np.array([[[1.0, 10.0]]])}
    for communicators, released in (((0, 0), [1, 4]), ((0, 1), [1, 10])):
        found = merged(**times, channel=Channel.of("nccl", communicator=communicators))
        assert found.released[0].tolist() == released
        assert found.transfer[0].tolist() == [9, 6]


@st.composite
def steps(draw):
    ranks, buckets = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    instants = st.lists(st.integers(0, 100), min_size=buckets, max_size=buckets)
    launch = [np.maximum.accumulate(draw(instants)) for _ in range(ranks)]
    done = np.max(launch, axis=0) + draw(instants)
    ends = draw(st.lists(st.integers(0, 200), min_size=ranks, max_size=ranks))
    return launch, [done] * ranks, ends


@given(steps())
def test_shares_add_up_to_the_busy_link_and_exposed_parts_to_the_wait(step):
    found = merged(*step)
    _, done, ends = step
    assert found.transfer.sum() == pytest.approx(found.busy.sum())
    wait = np.maximum(np.max(done, axis=1) - ends, 0)
    assert found.exposed_transfer[0] + found.exposed_skew[0] == pytest.approx(wait)
    assert (found.exposed_transfer[0] <= found.busy[0] + 1e-9).all()
    assert (found.exposed_skew >= 0).all()


INPUT, COMPUTE, TRANSFER, BUFFERS, OPTIMIZER = 2.0, 8.0, 3.0, 0.5, 1.0
STEPS = 4


def trained(late_ms, *, buffers=True):
    """Two ranks and two micro-steps of one bucket each; `late_ms` by micro-step and rank, in input. Times in ms."""
    late = np.array(late_ms, dtype=float)
    begin, end, launch, done, sent = ([] for _ in range(5))
    now = np.zeros(2)
    for _ in range(STEPS):
        begin.append(now)
        for micro in range(2):
            met = now + INPUT + late[micro]
            gone = np.full(2, met.max() + BUFFERS) if buffers else met
            sent.append((met, gone))
            launch.append(gone + COMPUTE)
            now = np.full(2, launch[-1].max() + TRANSFER)
            done.append(now)
        now = now + OPTIMIZER
        end.append(now)

    def by_step(values):
        return np.array(values).reshape(STEPS, 2, 2).swapaxes(1, 2)  # S x R x micro-step

    launched, ended = by_step(launch), by_step(done)
    held = [by_step([each[k] for each in sent]) for k in (0, 1)]
    wait = (held[1] - held[0]).sum(axis=2)
    nothing = np.zeros((STEPS, 2))
    return BlockStamps(
        begin=np.array(begin),
        end=np.array(end),
        input=2 * INPUT + nothing + late.sum(axis=0),
        backward=nothing,
        optimizer=nothing,
        compute_end=launched[:, :, 1],
        sync_end=ended[:, :, 1],
        ready=launched,
        launch=launched,
        done=ended,
        bytes=np.ones(2),
        earlier_wait=ended[:, :, 0] - launched[:, :, 0],
        buffer_wait=wait,
        buffer_begin=held[0] if buffers else held[0][:, :, :0],
        buffer_end=held[1] if buffers else held[1][:, :, :0],
        micro_steps=2,
    )


def cost_of(stamps, rank):
    """What a rank costs the step: replayed as it was, less without its lateness."""
    cycles = list(cycles_of((0, 0), stamps, merge(stamps)))
    assert [cycle.per_step for cycle in cycles] == [2, 2]
    period = sum(cycle.replay.period().mean() for cycle in cycles)
    assert period == pytest.approx((stamps.end - stamps.begin).mean())
    return period - sum(cycle.replay.without([rank]).period().mean() for cycle in cycles)


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("micro", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_late_in_one_micro_step_costs_what_it_is_late(buffers, micro, rank):
    late = np.zeros((2, 2))
    late[micro, rank] = 40
    stamps = trained(late, buffers=buffers)
    assert cost_of(stamps, rank) == pytest.approx(40)
    assert cost_of(stamps, 1 - rank) == pytest.approx(0)


def test_late_by_turns_each_costs_its_own():
    stamps = trained([[40, 0], [0, 25]])
    assert (cost_of(stamps, 0), cost_of(stamps, 1)) == (pytest.approx(40), pytest.approx(25))


@pytest.mark.parametrize("buffers", [True, False])
def test_every_wait_is_skew_or_transfer(buffers):
    stamps = trained([[0, 40], [0, 0]], buffers=buffers)
    merged = merge(stamps)
    held = stamps.buffer_end - stamps.buffer_begin
    skew = merged.exposed_skew + merged.buffer_skew.sum(axis=2)
    transfer = merged.exposed_transfer + (held - merged.buffer_skew).sum(axis=2)
    assert skew.mean(axis=0).tolist() == pytest.approx([40, 0])
    assert transfer.mean(axis=0).tolist() == pytest.approx([2 * (TRANSFER + BUFFERS * buffers)] * 2)


@pytest.fixture(scope="module")
def pair(measure, cluster):
    """A run of four ranks, and the same with every two steps as the micro-steps of one."""
    truth = cluster.Truth(
        world_sizes=(4,),
        buffers_ns=0.8 * MS,
        stragglers=(cluster.Straggler(rank=1, phase="input", extra_ns=30 * MS),),
    )
    run = measure(replace(truth, steps=8))
    return run, run.analyze(in_pairs(run.tables))


def in_pairs(tables):
    place = ["launch", "rank", "block", "step"]
    trained = pl.col("arm").is_in(["plain", "probe"])
    steps = (
        tables.steps.filter(trained)
        .with_columns(half=pl.col("step") % 2, step=pl.col("step") // 2)
        .sort(*place, "half")
    )
    sums = ["input_ns", "forward_ns", "backward_ns", "optimizer_ns", "buffer_wait_ns"]
    lasts = ["end_ns", "compute_end_ns", "sync_end_ns", "buffer_begin_ns", "buffer_end_ns"]
    waited = (pl.col("sync_end_ns") - pl.col("compute_end_ns")).first().alias("earlier_wait_ns")
    firsts = [c for c in tables.steps.columns if c not in (*place, *sums, *lasts, "earlier_wait_ns")]
    joined = steps.group_by(place, maintain_order=True).agg(
        pl.col(firsts).first(), pl.col(sums).sum(), pl.col(lasts).last(), waited
    )
    rows = tables.buckets.filter(trained)
    count = rows["seq"].max() + 1
    detailed = steps.filter((pl.col("arm") == "probe") & pl.col("detailed"))
    told = {"seq": 2 * count + pl.col("half"), "kind": 3, "group": 4, "bytes": 64, "phase": 1}
    sent = sent_in(detailed, rows, **told, launch_ns="buffer_begin_ns", done_ns="buffer_end_ns")
    rows = rows.with_columns(seq=pl.col("seq") + count * (pl.col("step") % 2), step=pl.col("step") // 2)
    blocks = tables.blocks.with_columns(
        accumulation=pl.when(trained)
        .then(2)
        .otherwise(pl.col("accumulation"))
        .cast(tables.blocks["accumulation"].dtype)
    )
    return replace(
        tables,
        steps=pl.concat([tables.steps.filter(~trained), joined.select(tables.steps.columns)]),
        buckets=pl.concat([tables.buckets.filter(~trained), rows, sent]),
        blocks=blocks,
    )


def test_two_micro_steps_cost_twice_what_one_costs(pair):
    run, joined = pair
    once, twice = run.point(4), joined.points[0]
    assert (twice.straggler.rank, twice.straggler.phase) == (1, "input")
    assert twice.step_ms.value == pytest.approx(2 * once.step_ms.value, rel=0.02)
    assert twice.straggler.cost_ms.value == pytest.approx(2 * once.straggler.cost_ms.value, rel=0.03)
    for part in ("exposed_skew", "exposed_transfer"):
        found = getattr(twice.parts_ms, part).value
        assert found == pytest.approx(2 * getattr(once.parts_ms, part).value, rel=0.05), part
    assert twice.loss.straggler.value == pytest.approx(once.loss.straggler.value, rel=0.05)
    assert twice.comm.hidden_share.value == pytest.approx(once.comm.hidden_share.value, abs=0.03)


def test_what_waits_for_the_host_is_in_the_replay_and_in_what_was_replayed():
    """Else the link would cost it a second time, beside `host`."""
    stamps = trained(np.zeros((2, 2)))
    late = replace(stamps, enqueue=stamps.launch + 1, host_ns=2.0)
    merged_late = merge(late)
    assert merged_late.exposed_enqueue[1:].sum() > 0
    cycles = list(cycles_of((0, 0), late, merged_late))
    waits = merged_late.exposed_transfer + merged_late.exposed_enqueue + late.buffer_wait
    assert sum(cycle.moving.sum() for cycle in cycles) == pytest.approx(waits[1:].sum(), rel=0.01)
