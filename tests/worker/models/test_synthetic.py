"""Compute made of sleeps lasts as long as it says, whatever the timers do."""

import pytest
import torch

from scaling.worker.models import synthetic

CPU = torch.device("cpu")


@pytest.fixture
def timer(monkeypatch):
    """A clock that only sleeping moves, by `late_s` more than asked for."""

    class Timer:
        now, late_s = 0.0, 1e-4

        def now_ns(self):
            return round(self.now * 1e9)

        def sleep(self, seconds):
            self.now += seconds + self.late_s

    timer = Timer()
    monkeypatch.setattr(synthetic, "now_ns", timer.now_ns)
    monkeypatch.setattr(synthetic, "sleep", timer.sleep)
    return timer


@pytest.mark.parametrize("late_s", [0.0, 1e-4, 4e-4])
def test_many_short_sleeps_together_are_late_by_one_timer_at_most(timer, late_s):
    timer.late_s = late_s
    nap = synthetic.Nap()
    for _ in range(100):
        nap(1e-3, CPU)
    assert timer.now == pytest.approx(0.1 + late_s, abs=1e-9)


def test_sleeps_shorter_than_the_timer_is_late_are_made_up_for_by_the_next(timer):
    timer.late_s = 3e-4
    nap = synthetic.Nap()
    for _ in range(20):
        nap(1e-4, CPU)
        nap(1e-3, CPU)
    assert timer.now == pytest.approx(20 * 1.1e-3, abs=4e-4)


def test_a_busy_machine_is_not_made_up_for(timer):
    timer.late_s = 5e-3
    nap = synthetic.Nap()
    for _ in range(10):
        nap(1e-3, CPU)
    assert timer.now > 10 * (1e-3 + 5e-3 - synthetic.LATE_MAX_S) - 1e-9


def test_a_step_sleeps_as_long_as_its_batch_says(timer):
    timer.late_s = 0.0
    workload = synthetic.build(param_mb=0.1, layers=4, compute_ms=60, reference_batch=32)
    inputs, targets = workload.make_batch(16, torch.Generator())
    workload.loss(workload.module(inputs), targets).backward()
    assert timer.now == pytest.approx(0.030)
