"""Detailed steps of a sharded module with known times: what is transfer, what is skew, and what a late rank costs."""

import numpy as np
import polars as pl
import pytest
from support.unit_steps import MS, sent_row, served, step_row

from scaling.analysis.decompose.loss import loss_by_kind
from scaling.analysis.decompose.quantities import Sent, by_kind
from scaling.analysis.decompose.sharded import exposed, has_units, read_sharded, unit_blocks
from scaling.analysis.statistics.rounds import Rounds
from scaling.settings.parallel import Mesh
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES

RANKS, STEPS, UNITS = 2, 5, 3
GATHER_MS, REDUCE_MS = 10.0, 20.0
FORWARD_MS, BACKWARD_MS = 4.0, 6.0
SIZE = 3_000_000
GATHER, REDUCE = KINDS.index("all_gather"), KINDS.index("reduce_scatter")
ALL_REDUCE = KINDS.index("all_reduce")
FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")


class Cluster:
    """Steps of ranks that gather each unit, compute, and reduce it, waiting for each collective at once."""

    def __init__(self, late_ms=0.0):
        self.late_ms, self.now = late_ms, [0.0, 0.5]
        self.rows, self.steps = [], []
        for step in range(STEPS):
            self.step(step)

    def send(self, step, seq, kind, phase, unit, took):
        over = max(self.now) + took
        for rank, at in enumerate(self.now):
            what = {"seq": seq, "kind": kind, "phase": phase, "unit": unit, "bytes": SIZE, "group": RANKS}
            self.rows.append(sent_row(step, rank, what, (at + 1000, over + 1000) * 2))
        waited = [over - at for at in self.now]
        self.now = [over] * RANKS
        return waited

    def step(self, step):
        begin, waits, seq = list(self.now), [[0.0] * RANKS, [0.0] * RANKS], 0
        self.now[1] += self.late_ms
        for phase, compute, units in (
            (FORWARD, FORWARD_MS, range(UNITS)),
            (BACKWARD, BACKWARD_MS, range(UNITS)),
        ):
            for unit in units:
                sent = [(GATHER, GATHER_MS)] + ([(REDUCE, REDUCE_MS)] if phase == BACKWARD else [])
                for kind, took in sent:
                    waited = self.send(step, seq, kind, phase, unit, took)
                    waits[phase == FORWARD] = [
                        a + b for a, b in zip(waits[phase == FORWARD], waited, strict=True)
                    ]
                    seq += 1
                    if kind == GATHER:
                        self.now = [at + compute for at in self.now]
        for rank in range(RANKS):
            waited = {"backward": waits[0][rank], "forward": waits[1][rank]}
            self.steps.append(step_row(step, rank, begin[rank] + 1000, self.now[rank] + 1000, **waited))

    def read(self):
        arguments = (
            pl.DataFrame(self.steps),
            pl.DataFrame(self.rows).lazy(),
            Mesh(shard=RANKS),
            served("gloo", groups=lambda _rank, _key: tuple(range(RANKS))),
        )
        return read_sharded(*arguments), unit_blocks(*arguments)[0][1]


@pytest.fixture
def clean():
    return Cluster().read()


def test_such_steps_are_known_by_their_waits():
    assert has_units(pl.DataFrame(Cluster().rows).lazy())


def test_collectives_by_kind_and_phase(clean):
    sent = clean[0].sent
    kinds = [(sent[p[0]].kind, sent[p[0]].phase, len(p)) for p in by_kind(sent)]
    assert kinds == [
        ("all_gather", "forward", UNITS),
        ("all_gather", "backward", UNITS),
        ("reduce_scatter", "backward", UNITS),
    ]
    assert sum(one.moved for one in sent) == 9 * SIZE / 2


def test_transfer_by_kind_is_what_each_takes(clean):
    merged = {name: values[0, 0] / MS for name, values in clean[0].merged.items()}
    assert merged["kind.0.transfer"] == pytest.approx(UNITS * GATHER_MS)
    assert merged["kind.1.transfer"] == pytest.approx(UNITS * GATHER_MS)
    assert merged["kind.2.transfer"] == pytest.approx(UNITS * REDUCE_MS)
    assert merged["busy"] == pytest.approx(UNITS * (2 * GATHER_MS + REDUCE_MS))


def test_all_of_it_is_waited_for_here_and_nothing_of_it_is_skew_in_later_steps(clean):
    transfer, skew = exposed(clean[1])
    assert transfer[1:].sum(axis=2) / MS == pytest.approx(UNITS * (2 * GATHER_MS + REDUCE_MS))
    assert skew[1:].sum() == pytest.approx(0)
    assert skew[0].sum() / MS == pytest.approx(0.5)  # one rank begins half a millisecond later


@pytest.mark.parametrize("late_ms", [20.0, 50.0])
def test_a_late_rank_is_skew_for_the_others_and_costs_what_it_is_late(late_ms):
    found, stamps = Cluster(late_ms).read()
    transfer, skew = exposed(stamps)
    assert skew[1:, 0].sum(axis=1) / MS == pytest.approx(late_ms)
    assert skew[1:, 1].sum() == pytest.approx(0)
    assert transfer[1:].sum(axis=2) / MS == pytest.approx(UNITS * (2 * GATHER_MS + REDUCE_MS))
    (cycle,) = found.cycles
    cost = (cycle.replay.period() - cycle.replay.without([1]).period()) / MS
    assert cost == pytest.approx(late_ms)
    own = cycle.replay.computed()
    assert (own[:, 1] - own[:, 0]) / MS == pytest.approx(late_ms)


def test_the_replay_of_the_steps_as_they_were_takes_as_long_as_they_did(clean):
    (cycle,) = clean[0].cycles
    step_ms = UNITS * (2 * GATHER_MS + REDUCE_MS + FORWARD_MS + BACKWARD_MS)
    assert cycle.replay.period() / MS == pytest.approx(step_ms)
    typical, linked = cycle.replay.at_mean_of(np.array([True, True]))
    assert typical / MS == pytest.approx(step_ms)
    assert linked / MS == pytest.approx(UNITS * (2 * GATHER_MS + REDUCE_MS))
    assert cycle.replay.without_transfer().period() / MS == pytest.approx(UNITS * (FORWARD_MS + BACKWARD_MS))


def rows_of(step, rank, sent):
    """Rows of a rank's step, from (kind, phase, unit, group, launch, done, wait, resume)."""
    for seq, (kind, phase, unit, group, *times) in enumerate(sent):
        what = {"seq": seq, "kind": kind, "phase": phase, "unit": unit, "group": group, "bytes": SIZE}
        yield sent_row(step, rank, what, tuple(at + 1000 for at in times))


SHARDS, COPIES = ((0, 1), (2, 3)), ((0, 2), (1, 3))
ON_ACCELERATORS = served(
    "nccl", groups=lambda rank, key: next(g for g in (SHARDS if key == 2 else COPIES) if rank in g)
)
"""Of two copies of two shards; group 2 is a rank's shards, group 3 its copies."""


def of_copies(late_ms):
    """Steps of two copies of two shards: a gather, two all-reduces over the copies, and one window for both at the end.

    The second all-reduce is behind the first one on its stream, so the copy that is not late has it early.
    """
    rows, steps, now = [], [], 0.0
    for step in range(STEPS):
        behind = [late_ms, late_ms, 0.0, 0.0]  # rank 1 is late, and rank 0 waits for its gather
        first, over = now + late_ms + 13.0, now + late_ms + 23.5
        for rank, late in enumerate(behind):
            asked, window = now + (late_ms if rank == 1 else 0.0), now + late + 21.0
            sent = [
                (GATHER, FORWARD, 0, 2, asked, now + late + 1.0, asked, now + late + 1.0),
                (ALL_REDUCE, BACKWARD, 1, 3, now + late + 11.0, first, window, over),
                (ALL_REDUCE, BACKWARD, 0, 3, max(window + 0.5, first) if late else first, over, window, over),
            ]
            rows += rows_of(step, rank, sent)
            waits = {"forward": now + late + 1.0 - asked, "backward": over - window}
            steps.append(step_row(step, rank, now + 1000, over + 1000, **waits))
        now = over
    mesh = Mesh(replicate=2, shard=2)
    return read_sharded(pl.DataFrame(steps), pl.DataFrame(rows).lazy(), mesh, ON_ACCELERATORS)


@pytest.mark.parametrize("late_ms", [0.0, 30.0])
def test_a_window_that_several_collectives_share_is_left_for_the_last_one_alone(late_ms):
    (cycle,) = of_copies(late_ms).cycles
    assert cycle.replay.period() / MS == pytest.approx(23.5 + late_ms)
    assert cycle.replay.without([1]).period() / MS == pytest.approx(23.5)


def test_an_all_reduce_goes_at_the_pace_of_its_rank_that_shares_its_wire():
    """Shards 0 and 1 reduce-scatter beside it and take twice as long for both; 2 and 3 have done so before."""
    rows, steps = [], []
    for rank in range(4):
        scattered = (30.0, 50.0) if rank < 2 else (5.0, 15.0)
        sent = [
            (REDUCE, BACKWARD, 0, 2, *scattered, *scattered),
            (ALL_REDUCE, BACKWARD, 0, 3, 30.0 if rank < 2 else 15.0, 50.0, scattered[1], 50.0),
        ]
        rows += rows_of(0, rank, sent)
        steps.append(step_row(0, rank, 1000.0, 1050.0, backward=50.0 - scattered[0]))
    mesh = Mesh(replicate=2, shard=2)
    ((_, stamps),) = unit_blocks(pl.DataFrame(steps), pl.DataFrame(rows).lazy(), mesh, ON_ACCELERATORS)
    np.testing.assert_allclose(stamps.transfer[0].T / MS, 10.0)


def test_all_kinds_that_divided_layers_send_are_in_the_loss():
    """Sequence-parallel layers gather and reduce: both are `tensor`, and the kinds add up to the whole."""
    sent = [
        Sent(kind=kind, phase="forward", unit=unit, bytes=1000, ranks=2, axis=axis)
        for unit, (kind, axis) in enumerate(
            [("all_gather", "shard"), ("all_gather", "tensor"), ("reduce_scatter", "tensor")]
        )
    ]
    values = {
        "link_exposed": 10.0,
        "replayed.transfer": 10.0,
        "replayed.exposed": 10.0,
        "exposed_transfer": 10.0,
        "detailed.exposed": 10.0,
        "probe.exposed": 10.0,
        "probe": 100.0,
        "kind.0.exposed_transfer": 2.0,
        "kind.1.exposed_transfer": 3.0,
        "kind.2.exposed_transfer": 5.0,
    }
    rounds = Rounds({name: np.full(6, value) for name, value in values.items()}, np.zeros(6, dtype=np.int64))
    shares = {one.kind: one.bandwidth.value for one in loss_by_kind(rounds, sent, None)}
    assert shares == pytest.approx({"all_gather": 0.02, "tensor": 0.08})
