"""Which steps of a loop are recorded, and how the stamps of a step are read."""

from collections import Counter

import pytest
from support.unit_steps import UNWAITED

from scaling.records.format import SLOTS_WHOLE, StepRow, generation
from scaling.settings.schedule import PLAIN, PROBE
from scaling.worker.parallel.strategy import BUFFERS, Wait
from scaling.worker.probe.loop_file import ROUND_STEPS, WARMUP, round_of, slot_of
from scaling.worker.probe.marks import (
    BACKWARD,
    COMPUTE_END,
    FORWARD,
    NAMED,
    NEXT_MODEL,
    OPTIMIZER,
    OPTIMIZER_END,
    SYNC_END,
    named_times,
    step_row,
    unseen_forwards,
)
from scaling.worker.probe.recording import summary


def test_a_round_has_every_arm_and_follows_the_one_before():
    blocks = round_of(0) + round_of(1)
    assert Counter((b.arm, b.detailed) for b in round_of(3)) == {
        (PLAIN, False): 2,
        (PROBE, False): 1,
        (PROBE, True): 1,
    }
    covered = [step for block in blocks for step in range(block.first, block.first + block.steps)]
    assert covered == list(range(WARMUP, WARMUP + 2 * ROUND_STEPS))
    assert len({block.id for block in blocks}) == len(blocks)
    assert [slot_of(step) for step in (0, WARMUP - 1, WARMUP, WARMUP + ROUND_STEPS)] == [-1, -1, 0, 1]


def test_sixty_steps_hold_five_rounds():
    assert (60 - WARMUP) // ROUND_STEPS == 5


def test_a_week_of_steps_leaves_records_that_do_not_grow():
    last = 7 * 24 * 3600 * 10 // ROUND_STEPS  # ten steps a second
    taken = [slot for slot in range(last) if round_of(slot)] if last < 10**5 else None
    step, count, slot = 1, 0, 0
    while slot < last:  # as round_of takes them, without asking for each
        step = 2 ** generation(slot)
        count, slot = count + 1, slot + step - slot % step
    assert taken is None or len(taken) == count
    assert count < SLOTS_WHOLE * 8
    even = 2 ** generation(last)
    assert SLOTS_WHOLE / 2 <= last / even <= SLOTS_WHOLE
    assert all(round_of(k * even) for k in range(5))


def fields(*marks):
    found = step_row(100, marks, 300)
    return found._asdict() if found else None


def test_the_parts_of_a_step():
    assert fields(
        (FORWARD, 110),
        (BACKWARD, 140),
        (COMPUTE_END, 180),
        (SYNC_END, 200),
        (OPTIMIZER, 210),
        (OPTIMIZER_END, 230),
        (OPTIMIZER, 240),
        (OPTIMIZER_END, 245),
    ) == UNWAITED | {
        "begin_ns": 100,
        "end_ns": 300,
        "input_ns": 10,
        "forward_ns": 30,
        "backward_ns": 60,
        "optimizer_ns": 35,  # with the clipping before it, from 200 on
        "compute_end_ns": 180,
        "sync_end_ns": 200,
    }


def test_between_two_micro_steps_the_next_batch_is_fetched():
    found = fields(
        (FORWARD, 110),
        (BACKWARD, 120),
        (COMPUTE_END, 130),
        (SYNC_END, 135),
        (FORWARD, 150),
        (BACKWARD, 160),
        (COMPUTE_END, 170),
        (SYNC_END, 190),
    )
    assert (found["input_ns"], found["forward_ns"], found["backward_ns"]) == (10 + 15, 20, 15 + 30)
    assert (found["compute_end_ns"], found["sync_end_ns"], found["earlier_wait_ns"]) == (170, 190, 5)


def test_after_an_optimizer_s_step_it_is_not():
    found = fields(
        (FORWARD, 110),
        (BACKWARD, 120),
        (COMPUTE_END, 130),
        (SYNC_END, 130),
        (OPTIMIZER, 130),
        (OPTIMIZER_END, 140),
        (FORWARD, 160),
        (BACKWARD, 165),
        (COMPUTE_END, 170),
        (SYNC_END, 170),
    )
    assert found["input_ns"] == 10
    assert found["optimizer_ns"] == 10


def test_before_the_forward_of_another_model_its_batch_is_fetched():
    found = fields(
        (FORWARD, 110),
        (BACKWARD, 120),
        (SYNC_END, 130),
        (OPTIMIZER, 130),
        (OPTIMIZER_END, 140),
        (NEXT_MODEL, 160),
        (BACKWARD, 165),
        (SYNC_END, 170),
    )
    assert (found["input_ns"], found["forward_ns"], found["optimizer_ns"]) == (10 + 20, 10 + 5, 10)


def test_backward_goes_on_around_the_steps_of_optimizers_within_it():
    found = fields(
        (FORWARD, 110),
        (BACKWARD, 120),
        (OPTIMIZER, 150),
        (OPTIMIZER_END, 152),
        (OPTIMIZER, 180),
        (OPTIMIZER_END, 183),
        (SYNC_END, 200),
    )
    assert (found["forward_ns"], found["backward_ns"], found["optimizer_ns"]) == (10, 30 + 28 + 17, 5)


ROLLOUT, UPDATE = NAMED, NAMED + 2
"""Begins of the first two phases that a loop names; the next number is the end of each."""
TRAINED = ((FORWARD, 150), (BACKWARD, 160), (COMPUTE_END, 180), (SYNC_END, 190))


def test_a_named_phase_is_none_of_the_four_whatever_it_calls():
    rollout = ((ROLLOUT, 105), (FORWARD, 110), (FORWARD, 120), (ROLLOUT + 1, 145))
    row = step_row(100, (*rollout, *TRAINED), 200, [Wait(BUFFERS, 112, 115)])
    assert (row.input_ns, row.forward_ns, row.backward_ns, row.optimizer_ns) == (5 + 5, 10, 30, 0)
    assert (row.buffer_wait_ns, row.host_wait_ns) == (0, 3)
    assert named_times((*rollout, *TRAINED), 200, [(112, 115)]) == {0: (40, 3)}


@pytest.mark.parametrize("end", [155, 195], ids=["with a forward", "with a backward, too"])
def test_a_named_phase_that_trains_is_in_the_four_as_well(end):
    marks = sorted([(UPDATE, 145), *TRAINED, (UPDATE + 1, end)], key=lambda mark: mark[1])
    assert step_row(100, marks, 200) == step_row(100, TRAINED, 200)
    assert named_times(marks, 200, [(180, 190)]) == {1: (end - 145, 10 if end == 195 else 0)}


def test_a_named_phase_that_is_entered_again_is_summed_and_one_that_is_not_left_ends_with_the_step():
    twice = ((ROLLOUT, 105), (ROLLOUT + 1, 110), (ROLLOUT, 120), (ROLLOUT + 1, 150))
    assert named_times((*twice, *TRAINED, (UPDATE, 192)), 200, ()) == {0: (35, 0), 1: (8, 0)}


def test_a_backward_whose_forward_was_not_seen_is_told_from_one_of_the_same_forward():
    another = ((BACKWARD, 102), (SYNC_END, 104), (OPTIMIZER, 105), (OPTIMIZER_END, 106))
    assert unseen_forwards((*another, *TRAINED)) == 1
    assert unseen_forwards((*TRAINED, *another)) == 0
    assert unseen_forwards((*TRAINED, (OPTIMIZER, 192), (OPTIMIZER_END, 193), *another)) == 1
    assert unseen_forwards(((FORWARD, 101), *another[:2], *another)) == 0
    assert (
        unseen_forwards(((FORWARD, 98), (NEXT_MODEL, 100), *another, *another)) == 0
    )  # both forwards come first


def test_a_step_without_a_backward_is_none():
    assert fields((FORWARD, 110)) is None


def test_the_live_line():
    step = StepRow(
        begin_ns=0,
        end_ns=100_000_000,
        input_ns=5_000_000,
        forward_ns=20_000_000,
        backward_ns=60_000_000,
        optimizer_ns=10_000_000,
        compute_end_ns=1,
        sync_end_ns=25_000_001,
    )
    assert summary(7, [step, step]) == (
        "scaling: step 7: 100.0 ms on rank 0; input 5%, forward 20%, backward 35%, optimizer 10%, "
        "communication 25%, host 5%"
    )


@pytest.mark.parametrize("slot", [-3, 0, SLOTS_WHOLE - 1])
def test_at_first_every_slot_is_taken(slot):
    assert generation(slot) == 0
