"""Own times and waits of steps without details."""

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.stragglers import lead, queue_waits, read_light, waits_look_like_compute

MS = 10**6
WAITS = ("earlier", "buffer", "forward", "backward", "input", "optimizer", "host")
NONE = dict.fromkeys(("buffer_begin", "buffer_end", *(f"{phase}_wait" for phase in WAITS)), 0)


def step(rank, **stamps_ms):
    """One step's row: 100 ms long, all of it the rank's own unless waits are given."""
    phases = dict.fromkeys(("input", "forward", "backward", "optimizer"), 0)
    stamps = {"begin": 0, "end": 100, "compute_end": 50, "sync_end": 50, **phases, **NONE, **stamps_ms}
    place = {"launch": 0, "round": 3, "block": 7, "step": 0, "rank": rank, "arm": "probe", "detailed": False}
    return place | {f"{name}_ns": at * MS for name, at in stamps.items()}


def read(*rows, n=2):
    return read_light(pl.DataFrame(rows), n)


def test_what_a_rank_does_not_wait_it_does_by_itself():
    light = read(
        step(0, sync_end=80, buffer_wait=2, forward_wait=3, backward_wait=4, earlier_wait=1),
        step(1, sync_end=60),
    )
    assert (light.own_ns[0, 3] / MS).tolist() == [[60, 90]]
    assert (light.waited[0, 3] / MS).tolist() == [40, 10]


def test_all_ranks_alike_wait_what_the_one_that_waits_least_does_at_each_place():
    light = read(step(0, sync_end=80, forward_wait=3), step(1, sync_end=51, forward_wait=9))
    assert light.alike[0, 3] == (1 + 3) * MS


@pytest.mark.parametrize(("late_begin", "alike_ms"), [(12, 3), (10, 5), (30, 0)])
def test_a_broadcast_moves_data_once_its_last_rank_has_come(late_begin, alike_ms):
    """The root begins at 10 and is done at 15; it does not wait for a rank that comes at 30."""
    end = max(15, late_begin + 5)
    light = read(
        step(0, sync_end=60, buffer_wait=5, buffer_begin=10, buffer_end=15),
        step(1, buffer_wait=end - late_begin, buffer_begin=late_begin, buffer_end=end),
    )
    assert light.alike[0, 3] == alike_ms * MS


def test_in_one_queue_what_a_rank_takes_longer_from_backward_on_counts_as_waiting():
    held = step(0, forward=20, backward=60, compute_end=80, sync_end=80, optimizer=20, optimizer_wait=1)
    late = step(1, input=50, backward=35, compute_end=85, sync_end=85, optimizer=5, optimizer_wait=1)
    light = read_light(queue_waits(pl.DataFrame([held, late]).lazy()), 2)
    assert (light.own_ns[0, 3] / MS).tolist() == [[100 - 25 - 15 - 1, 99]]
    assert light.alike[0, 3] == MS


@pytest.mark.parametrize(
    ("first", "late", "hidden"),
    [
        (
            {"backward": 55},
            {"input": 20, "backward": 35},
            True,
        ),  # equal, and each is longer where the other is not
        ({"backward": 35, "sync_end": 70}, {"input": 20, "backward": 35}, False),  # a wait that was seen
        ({"backward": 35, "sync_end": 70}, {"backward": 55}, False),  # late in backward itself
        ({"backward": 35}, {"backward": 35}, False),
    ],
)
def test_equal_ranks_may_hide_a_late_one_where_waits_look_like_compute(first, late, hidden):
    rows = [step(0, **{"sync_end": 51} | first), step(1, **{"sync_end": 51} | late)]
    assert waits_look_like_compute(pl.DataFrame(rows).lazy(), 2) is hidden


def test_where_no_wait_was_stamped_there_is_nothing_to_tell():
    assert read(step(0), step(1)) is None
    assert read(step(0, sync_end=60), n=1) is None


def test_a_block_that_a_rank_lacks_is_left_out():
    assert read(step(0, sync_end=60)) is None


def test_some_ranks_lead_is_over_the_latest_of_the_others():
    own = np.array([[10.0, 40, 12], [10, 20, 30]])
    assert lead(own, [1]) == ((40 - 12) + 0) / 2
    assert lead(own, [1, 2]) == ((40 - 10) + (30 - 10)) / 2
    assert lead(own, []) == 0
