"""Phases out of a profiler's trace: where an event on the stream would have been reached."""

import itertools
from types import SimpleNamespace

import pytest


@pytest.fixture
def phases(gpu_parts):
    return gpu_parts.phases


class Trace:
    """Made by hand, times in us: the host launches, one stream works off."""

    def __init__(self, mark):
        self.mark_name, self.events, self.numbers = mark, [], itertools.count(1)
        self.host = 1000.0
        self.free = 0.0
        """When the stream is through with what it was given."""

    def add(self, cat, name, ts, dur, **args):
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args})

    def mark(self, *, recorded=True):
        self.add("user_annotation", self.mark_name, self.host, 6.0)
        if recorded:
            self.add("cuda_runtime", "cudaEventRecord", self.host + 2, 2.0, correlation=next(self.numbers))
        self.host += 10

    def work(self, took, category="kernel"):
        number = next(self.numbers)
        self.add("cuda_runtime", "cudaLaunchKernel", self.host, 5.0, correlation=number)
        begin = max(self.host + 8, self.free)
        self.add(category, "k", begin, took, correlation=number)
        self.free = begin + took
        self.host += 5


@pytest.fixture
def trace(phases):
    return Trace(phases.MARK)


def step(trace, input_us, forward_us, backward_us, optimizer_us, **options):
    """The nine marks of a stamped step in the order in which they are taken."""
    trace.mark(**options)
    trace.mark(**options)
    trace.work(input_us, "gpu_memcpy")
    trace.mark(**options)
    trace.work(forward_us)
    trace.mark(**options)
    trace.work(backward_us)
    trace.mark(**options)  # the end of backward's compute
    trace.mark(**options)
    trace.mark(**options)
    trace.work(optimizer_us)
    trace.mark(**options)
    trace.mark(**options)


def means(phases, trace, skip=1):
    return phases.means_ms(phases.steps_of(phases.borders_ns(trace.events))[skip:])


@pytest.mark.parametrize("recorded", [True, False])
def test_where_the_device_is_behind_a_phase_is_its_kernels_time(phases, trace, recorded):
    for _ in range(4):
        step(trace, 400, 3000, 6000, 800, recorded=recorded)
    found = means(phases, trace)
    assert found == pytest.approx(
        {"input": 0.4, "forward": 3.0, "backward": 6.0, "optimizer": 0.8, "step": 10.2}, abs=0.001
    )


def test_where_the_host_is_behind_a_border_is_where_the_host_was(phases, trace):
    """Kernels of 1 us: the stream idles, and an event is reached when it is recorded."""
    for _ in range(3):
        step(trace, 1, 1, 1, 1)
    found = means(phases, trace)
    assert found["forward"] == pytest.approx(0.015, abs=0.001)  # from record to record
    assert found["step"] == pytest.approx(0.1, abs=0.001)


def test_on_a_cpu_there_are_marks_alone(phases, trace):
    for name, took in zip(["x"] * 9, (0, 40, 300, 600, 0, 0, 80, 0, 0), strict=True):
        trace.mark(recorded=False)
        trace.add("cpu_op", name, trace.host, took)
        trace.host += took
    found = means(phases, trace, skip=0)
    assert found["input"] == pytest.approx(0.05)
    assert found["forward"] == pytest.approx(0.31)
    assert found["backward"] == pytest.approx(0.62)


def test_work_without_a_launch_is_no_silent_zero(phases, trace):
    step(trace, 400, 3000, 6000, 800)
    trace.events = [event for event in trace.events if event["name"] != "cudaLaunchKernel"]
    with pytest.raises(ValueError, match="no launch of 4 of 4 pieces"):
        phases.borders_ns(trace.events)


def test_a_step_with_too_few_marks_is_refused(phases):
    with pytest.raises(ValueError, match="10 marks, 9 a step"):
        phases.steps_of(range(10))


def test_a_marked_clock_is_the_clock_and_leaves_a_range_for_every_stamp(phases):
    from torch.profiler import profile

    clock = phases.MarkedClock(SimpleNamespace(stamp=iter((7, 8)).__next__, bound_ns=3))
    with profile() as profiled:
        stamps = [clock.stamp(), clock.stamp()]
    assert (stamps, clock.bound_ns) == ([7, 8], 3)
    assert [event.name for event in profiled.events()].count(phases.MARK) == 2


def test_the_network_is_resnet_50_in_size(gpu_parts):
    import torch

    with torch.device("meta"):
        module = gpu_parts.resnet.resnet()
    assert sum(p.numel() for p in module.parameters()) == 25_557_032
    small = gpu_parts.resnet.resnet((1, 1), width=8, classes=10)
    assert small(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_stamp_on_a_simulated_device_is_reached_with_the_work_queued_before_it(phases):
    tasks = [(10, 40), (20, 70), (90, 95)]  # (queued, end): the stream is busy until 70, then idle
    assert phases.borders_of_tasks_ns([5, 10, 25, 80, 90], tasks) == [5, 40, 70, 80, 95]
