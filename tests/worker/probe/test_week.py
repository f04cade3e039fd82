"""A week of steps: what a probe keeps in memory and on disk does not grow with them."""

import gc
import tracemalloc
from types import SimpleNamespace

import pytest

from scaling.records.format import NO_TOKENS, SCHEMA, SLOTS_WHOLE, CollectiveRow, HeadRecord, generation
from scaling.worker.accelerator.clock import HostClock, now_ns
from scaling.worker.measure.recorder import Recorder
from scaling.worker.parallel.strategy import Detail
from scaling.worker.probe.loop_file import ROUND_STEPS, WARMUP
from scaling.worker.probe.marks import BACKWARD, COMPUTE_END, FORWARD, OPTIMIZER, OPTIMIZER_END, SYNC_END
from scaling.worker.probe.track import Track

WEEK = 7 * 24 * 3600 * 10
"""Steps, ten a second."""
BUCKETS = 8
KIND = (FORWARD, BACKWARD, COMPUTE_END, SYNC_END, OPTIMIZER, OPTIMIZER_END)


class Phases:
    """A step's marks without a model."""

    def __init__(self):
        self.forwards, self.marks, self.forward_end_ns = 1, [], 0
        self.tokens, self.squared, self.reduces_behind = NO_TOKENS, 0, True

    def begin(self, *, marking):
        begin = now_ns()
        self.marks = [(kind, begin + k) for k, kind in enumerate(KIND)] if marking else []


class Eight(Detail):
    """Eight all-reduces a step, which end with its backward."""

    def __init__(self, phases):
        super().__init__(stamps=2 * BUCKETS)
        self._phases = phases

    def _rows(self, _forward_end_ns):
        at = dict(self._phases.marks)[SYNC_END]
        return [CollectiveRow(k, 0, 2, 2**23, at - 2, at - 1, at) for k in range(BUCKETS)]


def tracked(path):
    """A track that records into a file, and its steps, so many at a time."""
    recorder = Recorder(path, HeadRecord(schema=SCHEMA, rank=0, host=0), flush_s=0.0)
    device = SimpleNamespace(clock=HostClock(), type="cpu")
    phases = Phases()
    track = Track(phases, lambda: Eight(phases), device, recorder.block)
    track.begin(paused=False)

    def steps(count):
        for _ in range(count):
            track.begin(paused=False)
            track.end()

    return track, steps


def rounds(last):
    """Slots that are taken up to one, as round_of takes them, without asking for each."""
    count = slot = 0
    while slot < last:
        step = 2 ** generation(slot)
        count, slot = count + 1, slot + step - slot % step
    return count


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps(tmp_path):
    _, steps = tracked(tmp_path / "rank-0.jsonl")
    tracemalloc.start()
    try:
        steps(22_000)  # whatever is made once is made
        # torch drops objects of each wait's kernel in cycles
        uncollected = tracemalloc.get_traced_memory()[0]
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        steps(20_000)
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 32 * 2**10
    assert peak - uncollected < 2**20  # a round's steps, until they are written


def test_what_a_round_held_is_let_go_when_it_is_written(tmp_path):
    track, steps = tracked(tmp_path / "rank-0.jsonl")
    steps(WARMUP + ROUND_STEPS - 1)
    assert len(track._whole) > 0
    steps(1)
    assert track._whole == []
    assert len(track._planned) <= 4


def test_a_week_s_records_fit_into_a_few_megabytes(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    _, steps = tracked(path)
    written = 100
    steps(WARMUP + written * ROUND_STEPS)
    each = path.stat().st_size / written
    assert written < SLOTS_WHOLE  # so all of them are there
    assert each * rounds(WEEK // ROUND_STEPS) < 4 * 2**20


def test_after_a_week_a_step_more_costs_a_line_now_and_then(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    track, steps = tracked(path)
    steps(WARMUP + ROUND_STEPS)
    size = path.stat().st_size
    track.steps = WARMUP + (WEEK // ROUND_STEPS) * ROUND_STEPS
    steps(20_000)
    more = path.stat().st_size - size
    assert more < 10 * size  # 2,000 slots, of which a handful is taken
