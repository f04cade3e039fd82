"""What a probe records of a loop whose steps take 4 ms, but for some."""

import gc
import itertools
import threading
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp

from scaling.worker.accelerator.clock import now_ns
from scaling.worker.probe import pauses as module
from scaling.worker.probe.pauses import KNOWN, Pauses

STEP_S, STEPS, AT = 0.004, 40, 30
MS = 1e6


@pytest.fixture
def follow():
    """follow(between, within, elsewhere=...) -> records of a loop that calls one of them at step AT."""

    def run(between=lambda _pauses: None, within=lambda _pauses: None, *, elsewhere=False, retries=int):
        records = []
        pauses = Pauses(records.append, retries)
        gc.disable()  # of the test's own process
        for step in range(STEPS):
            if step == AT:
                between(pauses)
            pauses.begin(elsewhere=elsewhere and step == AT)
            time.sleep(STEP_S)
            if step == AT:
                within(pauses)
            pauses.end(step, now_ns())
            pauses.since(now_ns())
        gc.enable()
        pauses.close(STEPS)
        return [record for record in records if record.step == AT and record.more_ns > 20 * MS]

    yield run
    gc.enable()


def about(record, least_ms):
    """At least that long, and no multiple of it, on a machine that may be busy."""
    return 0.9 * least_ms < record.more_ns / MS < 2.5 * least_ms


def nap(_pauses):
    time.sleep(0.05)


def test_a_long_step_is_recorded_with_what_it_takes_beyond_the_usual(follow):
    (between,), (within,) = follow(nap), follow(within=nap)
    for record in (between, within):
        assert record.kind == ""
        assert about(record, 50)
    assert between.gap_ns > 45 * MS > 5 * MS > within.gap_ns


def test_what_the_loop_names_is_recorded_with_its_name_and_its_time_alone(follow):
    def validate(pauses):
        nap(pauses)
        with pauses.named("validation"):
            time.sleep(0.03)

    (record,) = follow(validate)
    assert record.kind == "validation"
    assert about(record, 30)


def test_a_model_that_runs_outside_of_steps_is_an_evaluation(follow):
    (record,) = follow(nap, elsewhere=True)
    assert record.kind == "evaluation"
    assert about(record, 50)


def test_saves_are_recognised_in_the_loops_thread_alone_and_put_back(follow, tmp_path):
    before = torch.save, dcp.save, dcp.async_save

    def save(_pauses):
        torch.save(torch.zeros(8), tmp_path / "saved.pt")
        nap(_pauses)  # what gathers the state around it belongs to the save

    def elsewhere(pauses):
        thread = threading.Thread(target=save, args=(pauses,))
        thread.start()
        thread.join()

    assert [record.kind for record in follow(save)] == ["save"]
    assert [record.kind for record in follow(elsewhere)] == [""]
    assert (torch.save, dcp.save, dcp.async_save) == before


class SlowDisk(dcp.FileSystemWriter):
    """Takes 60 ms longer."""

    def write_data(self, plan, planner):
        time.sleep(0.06)
        return super().write_data(plan, planner)


def test_an_asynchronous_save_is_what_blocks_and_what_goes_on_beside(tmp_path):
    records = []
    pauses = Pauses(records.append)
    pauses.since(now_ns())
    future = dcp.async_save({"weight": torch.zeros(8)}, storage_writer=SlowDisk(tmp_path), no_dist=True)
    pauses.begin(elsewhere=False)
    future.result()
    time.sleep(0.01)
    pauses.end(0, now_ns())
    pauses.since(now_ns())
    pauses.close(1)
    blocked, beside = records
    assert (blocked.kind, beside.kind) == ("async save", "beside an async save")
    assert beside.more_ns > 60 * MS
    assert 0 < blocked.more_ns < beside.more_ns


def test_a_collection_of_garbage_and_an_allocator_that_retries_are_named(follow):
    def collect(_pauses):
        keep = [[] for _ in range(300_000)]
        for _ in range(8):
            gc.collect()
        del keep

    counts = itertools.count()
    assert [record.kind for record in follow(within=collect)] == ["garbage collection"]
    assert [record.kind for record in follow(within=nap, retries=lambda: next(counts))] == ["allocator retry"]


def test_a_lap_ends_what_a_framework_tells_only_at_its_end(follow):
    def evaluate_and_save(pauses):
        time.sleep(0.05)
        pauses.lap("evaluation")
        time.sleep(0.03)
        pauses.lap("save")

    evaluation, save = follow(evaluate_and_save, elsewhere=True)
    assert (evaluation.kind, save.kind) == ("evaluation", "save")
    assert about(evaluation, 50)
    assert about(save, 30)


def test_nothing_is_long_before_the_usual_is_known():
    records = []
    pauses = Pauses(records.append)
    for step in range(KNOWN):
        pauses.begin(elsewhere=False)
        time.sleep(0.05 if step == KNOWN - 2 else STEP_S)
        pauses.end(step, now_ns())
        pauses.since(now_ns())
    pauses.close(KNOWN)
    assert records == []


def test_many_pauses_of_a_kind_are_put_together_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(module, "PAUSES_SINGLE", 4)
    records = []
    pauses = Pauses(records.append)
    for step in range(30):
        with pauses.named("log"):
            pass
        pauses.begin(elsewhere=False)
        pauses.end(step, now_ns())
        pauses.since(now_ns())
    pauses.close(30)
    logs = [record.count for record in records if record.kind == "log"]
    assert logs == [1] * 4 + [2] * 4 + [4] * 4 + [1]  # what came before the first step is in none
