"""Device events told in host time."""

import itertools

import pytest

from scaling.records.format import CollectiveRow
from scaling.worker.accelerator import clock as clock_module
from scaling.worker.accelerator.clock import ANCHOR_TRIES, EventClock, HostClock, resolve_collective

MS = 1_000_000
ROUNDING_NS = 600  # single-precision ms over windows of a few seconds, and the fake's cost of a call


@pytest.fixture
def clock(cuda):
    return EventClock(cuda.new_event, cuda.synchronize)


def reached(clock, token):
    return clock._events[~token].reached


def test_a_host_stamp_is_its_own_time():
    clock = HostClock()
    with clock.window(2):
        first, second = clock.stamp(), clock.stamp()
    assert clock.resolve([0, first, second]) == [0, first, second]
    assert 0 < first <= second
    assert clock.bound_ns == 0


def test_events_resolve_to_the_host_time_at_which_the_device_reached_them(cuda, clock):
    with clock.window(60):
        tokens = []
        for _ in range(60):
            tokens.append(clock.stamp())
            cuda.enqueue(50 * MS)  # the host is 3 s ahead in the end
    times = clock.resolve(tokens)
    errors = [abs(at - reached(clock, token)) for at, token in zip(times, tokens, strict=True)]
    assert max(errors) <= clock.bound_ns + ROUNDING_NS
    assert clock.bound_ns < 10_000
    spans = [b - a for a, b in itertools.pairwise(times)]
    assert spans[1:] == pytest.approx([50 * MS] * 58, abs=ROUNDING_NS)


def test_neither_offset_nor_drift_of_the_device_clock_matters(cuda):
    cuda.offset_ns, cuda.drift = 10**12, -5e-3
    clock = EventClock(cuda.new_event, cuda.synchronize)
    with clock.window(2):
        cuda.enqueue(2_000 * MS)
        tokens = [clock.stamp()]
        cuda.enqueue(2_000 * MS)
        tokens.append(clock.stamp())
    for at, token in zip(clock.resolve(tokens), tokens, strict=True):
        assert abs(at - reached(clock, token)) <= clock.bound_ns + ROUNDING_NS


def test_streams_complete_in_their_own_order(cuda, clock):
    with clock.window(3):
        launch = clock.stamp()
        cuda.enqueue(30 * MS, "nccl", after="compute")
        cuda.current = "nccl"
        done = clock.stamp()
        cuda.current = "compute"
        cuda.enqueue(5 * MS)
        compute_end = clock.stamp()  # recorded last, reached first
    begin, end, compute = clock.resolve([launch, done, compute_end])
    assert end - begin == pytest.approx(30 * MS, abs=2_000)
    assert compute - begin == pytest.approx(5 * MS, abs=2_000)


def test_a_stamp_waits_for_nothing(cuda, clock):
    with clock.window(100):
        before = cuda.synchronised
        for _ in range(100):
            cuda.enqueue(MS)
            clock.stamp()
        assert cuda.synchronised == before
        assert cuda.now < min(cuda.busy.values()) - 90 * MS  # the host ran ahead
    assert cuda.synchronised == before + 1 + ANCHOR_TRIES


def test_events_are_made_before_the_window_and_used_again(cuda, clock):
    with clock.window(10):
        made = cuda.created
        first = [clock.stamp() for _ in range(10)]
        assert cuda.created == made
    with clock.window(10):
        assert [clock.stamp() for _ in range(10)] == first
    assert cuda.created == made


def test_a_window_that_was_opened_for_too_few_still_tells_them_apart(cuda, clock):
    with clock.window(1):
        tokens = []
        for _ in range(4):
            cuda.enqueue(MS)
            tokens.append(clock.stamp())
    assert len(set(tokens)) == 4
    assert clock.resolve(tokens) == sorted(clock.resolve(tokens))


def test_host_stamps_and_gaps_pass_through(clock):
    with clock.window(1):
        token = clock.stamp()
    gap, event, host = clock.resolve([0, token, 123_456_789])
    assert (gap, host) == (0, 123_456_789)
    assert event > 0


@pytest.mark.parametrize("group", [-2, -1, 8])
def test_of_a_collective_only_the_stamps_are_resolved(clock, group):
    with clock.window(2):
        tokens = [clock.stamp(), clock.stamp()]
    assert -2 <= min(tokens) < 0  # of the same range as keys of pairings
    row = resolve_collective(clock, CollectiveRow(3, 0, group, 2**20, 0, *tokens))
    assert row == CollectiveRow(3, 0, group, 2**20, 0, *clock.resolve(tokens))
    assert (row.enqueue_ns, row.unit) == (0, -1)


def test_the_bound_says_when_anchors_are_slow(cuda, clock, monkeypatch):
    with clock.window(1):
        clock.stamp()
    quick = clock.bound_ns

    def slow_host_ns():
        cuda.now += MS
        return cuda.now

    monkeypatch.setattr(clock_module, "now_ns", slow_host_ns)
    with clock.window(1):
        clock.stamp()
    assert quick < 10_000 < MS // 2 <= clock.bound_ns


def late_looks(cuda, quick):
    """A look at the host's clock that comes 10 ms late, except those whose number `quick` accepts."""
    calls = itertools.count()

    def look():
        cuda.now += 100 if quick(next(calls)) else 10 * MS
        return cuda.now

    return look


def test_the_quickest_of_several_ties_counts(cuda, clock, monkeypatch):
    # The first look says how long to try, then each tie takes two. One tie of five is undisturbed.
    looks = late_looks(cuda, lambda call: call % (2 * ANCHOR_TRIES + 1) in (4, 5, 6))
    monkeypatch.setattr(clock_module, "now_ns", looks)
    with clock.window(1):
        clock.stamp()
    assert clock.bound_ns < 10 * MS


@pytest.mark.parametrize(("tried_ms", "bound_is_fine"), [(100, True), (10, False)])
def test_a_device_that_answers_late_is_tied_again_for_some_time(
    cuda, clock, monkeypatch, tried_ms, bound_is_fine
):
    """As where other processes have the device for milliseconds: one answer in ten comes at once."""
    cuda.late_ns = itertools.cycle([4 * MS] * 9 + [0])
    monkeypatch.setattr(clock_module, "ANCHOR_TIME_NS", tried_ms * MS)
    with clock.window(1):
        clock.stamp()
    assert (clock.bound_ns < clock_module.ANCHOR_BOUND_NS) is bound_is_fine


def test_a_failure_inside_waits_for_no_device(cuda, clock):
    def fail():
        with clock.window(1):
            waited.append(cuda.synchronised)
            raise RuntimeError("mine")

    waited = []
    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert waited == [cuda.synchronised]


def test_no_stamp_is_recorded_into_a_graph(cuda):
    capturing = [False]
    clock = EventClock(cuda.new_event, cuda.synchronize, lambda: capturing[0])
    with clock.window(2):
        first = clock.stamp()
        capturing[0] = True
        assert not clock.captured
        assert clock.stamp() == 0
        capturing[0] = False
        last = clock.stamp()
    assert clock.captured
    begin, inside, end = clock.resolve([first, 0, last])
    assert inside == 0
    assert begin <= end
