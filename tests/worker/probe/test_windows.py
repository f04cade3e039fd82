"""A loop that does something else in the middle of a round, on a clock whose stamps are a device's events."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.tables import collected
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling.analysis.run import derive
from scaling.records.format import NO_TOKENS
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.settings.parallel import OWN
from scaling.worker.accelerator import clock as clock_module
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import EventClock
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.tap import backend_of
from scaling.worker.probe import recording as recording_module
from scaling.worker.probe.loop_file import ROUND_STEPS, WARMUP, round_of
from scaling.worker.probe.marks import BACKWARD, COMPUTE_END, FORWARD, OPTIMIZER, OPTIMIZER_END, SYNC_END
from scaling.worker.probe.probe import LOOKED
from scaling.worker.probe.track import Track

KINDS = (FORWARD, BACKWARD, COMPUTE_END, SYNC_END, OPTIMIZER, OPTIMIZER_END)


class Event:
    """Reached when it is recorded."""

    at_ns = -1

    def record(self):
        self.at_ns = clock_module.now_ns()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at_ns - self.at_ns) / 1e6


class Windows(EventClock):
    """A device's clock that tells when a stamp is taken outside of a window, or a window within another."""

    def __init__(self):
        super().__init__(Event, lambda: None)
        self.open = self.opened = 0

    def stamp(self):
        assert self.open == 1, "a stamp outside of any window"
        return super().stamp()

    @contextlib.contextmanager
    def window(self, stamps):
        assert self.open == 0, "a window within another"
        self.open, self.opened = 1, self.opened + 1
        with super().window(stamps):
            yield
        self.open = 0


class Loop:
    """Steps of a track, and when they were entered and left by the host's clock."""

    def __init__(self):
        self.clock = Windows()
        self.blocks = {}
        self.entered: list[int] = []
        self.left: list[int] = []
        phases = SimpleNamespace(
            forwards=1,
            marks=[],
            tokens=NO_TOKENS,
            squared=0,
            forward_end_ns=0,
            reduces_behind=True,
            begin=self.mark,
        )
        self.phases = phases
        device = SimpleNamespace(clock=self.clock, type="cpu")
        self.track = Track(phases, Detail, device, self.sink)
        self.slots: list[int] = []
        self.track.between = self.slots.append

    def mark(self, *, marking):
        self.phases.marks = [(kind, self.clock.stamp()) for kind in KINDS] if marking else []

    def sink(self, recorded):
        assert self.clock.open == 0  # nothing is written in a round
        self.blocks[recorded.block.id] = recorded.steps

    def steps(self, count, *, paused=False):
        for index in range(count):
            self.entered.append(clock_module.now_ns())
            self.track.begin(paused=paused and index == 0)
            self.track.end()
            self.left.append(clock_module.now_ns())

    def else_where(self):
        """What a baseline does: windows of its own on the same clock."""
        self.track.leave()
        for _ in range(3):
            with self.clock.window(50):
                for _ in range(50):
                    self.clock.stamp()


@pytest.fixture
def loop(monkeypatch):
    """On a host's clock that goes on by 1 us a reading, so a busy machine moves no stamp."""
    monkeypatch.setattr(clock_module, "now_ns", itertools.count(1_000_000_000, 1_000).__next__)
    return Loop()


def within(loop, block):
    """Whether a block's stamps are where the host saw its steps. It opens at the end of the step before."""
    opened = loop.entered[block.first - 1]
    return all(
        opened <= begin <= end <= loop.left[block.first + k]
        for k, (begin, end, *_) in enumerate(loop.blocks[block.id])
    )


@pytest.mark.parametrize("at", range(ROUND_STEPS))
@pytest.mark.parametrize("baseline", [False, True])
def test_wherever_a_round_is_interrupted_its_other_blocks_have_their_times(loop, at, baseline):
    loop.steps(WARMUP + ROUND_STEPS + at)
    if baseline:
        loop.else_where()
    loop.steps(2 * ROUND_STEPS - at, paused=True)
    loop.track.stop()
    planned = [block for slot in range(3) for block in round_of(slot)]
    step = WARMUP + ROUND_STEPS + at
    cut = {block.id for block in planned if block.first <= step < block.first + block.steps}
    assert set(loop.blocks) == {block.id for block in planned} - cut
    assert len(cut) == 1
    assert all(within(loop, block) for block in planned if block.id not in cut)
    assert loop.slots == [0, 1, 2, 3]
    assert loop.clock.open == 0


def test_a_pause_ends_the_window_and_the_next_block_opens_another(loop):
    block = next(block for block in round_of(0) if block.steps == 3)
    loop.steps(block.first + 1)
    assert (loop.clock.open, loop.clock.opened) == (1, 1)
    loop.steps(1, paused=True)
    assert (loop.clock.open, loop.clock.opened) == (0, 1)
    loop.steps(1)
    assert (loop.clock.open, loop.clock.opened) == (1, 2)


def test_what_was_told_at_a_pause_is_written_with_its_round(loop):
    first, second, *_ = round_of(0)
    loop.steps(second.first)
    loop.steps(1, paused=True)
    assert loop.blocks == {}
    loop.steps(WARMUP + ROUND_STEPS - second.first - 1)
    assert first.id in loop.blocks
    assert second.id not in loop.blocks


@pytest.fixture
def ddp(one_rank):
    return DistributedDataParallel(torch.nn.Linear(4, 4))


class OnEvents(Cpu):
    def __init__(self):
        super().__init__()
        self.clock = Windows()


@pytest.mark.parametrize("at", [WARMUP + ROUND_STEPS, WARMUP + ROUND_STEPS + 4])
def test_a_baseline_in_a_round_has_the_clock_to_itself(ddp, tmp_path, monkeypatch, capsys, at):
    monkeypatch.setattr(recording_module, "device_of", lambda _parameter: OnEvents())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def step(module):
        module(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    begun = clock_module.now_ns()
    with Probe(ddp, run_dir=tmp_path / "run") as probe:
        for index in range(WARMUP + 3 * ROUND_STEPS):
            if index == at:
                probe.baseline(step, rounds=2, steps=2)
            with probe.step():
                step(ddp)
    ended = clock_module.now_ns()
    assert capsys.readouterr().err.splitlines() == [
        f"scaling: Probe: `scaling analyze {tmp_path / 'run'}` reports the run"
    ]
    lines = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    blocks = {record["id"]: record for record in records if record["t"] == "block"}
    assert sum(block < 0 for block in blocks) == 2 * 5  # of the baseline: five arms a round
    assert sum(block >= 0 for block in blocks) == 3 * 4 - 1
    run = RunFolder(tmp_path / "run")
    steps = collected(run).steps
    assert steps.height > 0
    for number, begin, end in steps.select("block", "begin_ns", "end_ns").iter_rows():
        block = blocks[number]
        assert begun < block["begin_ns"] <= end <= block["end_ns"] + 1_000_000 < ended + 1_000_000
        assert begin <= end


def test_an_exception_beside_a_device_waits_for_nothing_and_is_written_down(ddp, tmp_path, monkeypatch):
    """The device may have failed, or wait for ranks that never come."""

    class OnDevice(OnEvents):
        def __init__(self):
            super().__init__()
            self.torch_device = torch.device("cuda", 0)

    def wait():
        raise RuntimeError("CUDA error: device-side assert triggered")

    def training():
        with Probe(ddp, run_dir=tmp_path / "run") as probe:
            for _ in range(WARMUP + ROUND_STEPS + 4):
                with probe.step():
                    ddp(torch.ones(2, 4)).sum().backward()
            probe._recording._device.clock._synchronize = wait
            raise ValueError("out of cheese")

    monkeypatch.setattr(recording_module, "device_of", lambda _parameter: OnDevice())
    with pytest.raises(ValueError, match="out of cheese"):
        training()
    lines = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["round"] for record in records if record["t"] == "block"} == {0}
    assert (records[-1]["t"], records[-1]["state"]) == ("end", "failed")
    assert records[-1]["error"] == "ValueError: out of cheese"


@pytest.mark.parametrize(("done", "counted"), [("forward", 0), ("no_sync", 0), ("backward", 1), ("step", 1)])
def test_a_step_that_failed_counts_if_other_ranks_had_their_part_in_it(ddp, tmp_path, done, counted):
    optimizer, steps = torch.optim.SGD(ddp.parameters(), lr=0.01), WARMUP + 2 * ROUND_STEPS

    def train(failing):
        unsynced = ddp.no_sync() if failing and done == "no_sync" else contextlib.nullcontext()
        with unsynced:
            loss = ddp(torch.ones(2, 4)).sum()
            if not failing or done != "forward":
                loss.backward()
        if not failing or done == "step":
            optimizer.step()
        if failing:
            raise ValueError("out of memory")

    with Probe(ddp, run_dir=tmp_path / "run") as probe:
        for index in range(steps):
            if index == WARMUP + 4:
                with contextlib.suppress(ValueError), probe.step():
                    train(failing=True)
            with probe.step():
                train(failing=False)
    lines = (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[-1]["steps"] == steps + counted
    assert sum(record["t"] == "block" for record in records) == 2 * 4 - 1


def test_an_evaluation_between_two_micro_steps_is_no_part_of_the_step_and_costs_its_block_alone(
    ddp, tmp_path
):
    optimizer, nap_s = torch.optim.SGD(ddp.parameters(), lr=0.01), 0.1
    stamped = next(block for block in round_of(1) if block.stamped)
    with Probe(ddp, run_dir=tmp_path / "run") as probe:
        for index in range(WARMUP + 3 * ROUND_STEPS):
            for micro in range(2):
                with probe.step(), contextlib.nullcontext() if micro else ddp.no_sync():
                    ddp(torch.ones(2, 4)).sum().backward()
                    if micro:
                        optimizer.step()
                if index == stamped.first + stamped.steps - 1 and not micro:
                    with torch.no_grad():
                        ddp(torch.ones(2, 4))
                    time.sleep(nap_s)
    run = RunFolder(tmp_path / "run")
    lines = (run.path / "launches/0/rank-0.jsonl").read_text().splitlines()
    blocks = {record["id"] for record in map(json.loads, lines) if record["t"] == "block"}
    assert blocks == {block.id for slot in range(3) for block in round_of(slot)} - {stamped.id}
    (pause,) = derive(run)[0].analysis.points[0].pauses
    assert (pause.kind, pause.count) == ("evaluation", 1)
    assert nap_s <= pause.seconds.value < 2 * nap_s


def test_a_probe_that_finds_its_model_finds_another_one_when_it_is_opened_again(one_rank, tmp_path):
    probe, models = Probe(run_dir=tmp_path / "run"), []
    for _ in range(2):
        models.append(DistributedDataParallel(torch.nn.Linear(4, 4)))  # both are there, but one trains
        with probe:
            for _ in range(LOOKED + WARMUP + ROUND_STEPS):
                with probe.step():
                    models[-1](torch.ones(2, 4)).sum().backward()
    for launch in RunFolder(tmp_path / "run").launches():
        lines = (launch.path / "rank-0.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["steps"] == WARMUP + ROUND_STEPS
        assert sum('"t":"block"' in line for line in lines) == 4
    assert launch.index == 1


@pytest.mark.parametrize("hook", [None, allreduce_hook])
def test_a_hook_of_the_loops_own_is_noted(ddp, tmp_path, hook):
    """DDP takes no second one, so none is offered."""
    if hook is not None:
        ddp.register_comm_hook(ddp.process_group, hook)
    with Probe(ddp, run_dir=tmp_path / "run") as probe:
        for _ in range(WARMUP + ROUND_STEPS):
            with probe.step():
                ddp(torch.ones(2, 4)).sum().backward()
    assert read_plan(RunFolder(tmp_path / "run")).spec.ddp.comm_hook == ("none" if hook is None else "own")


class Task(torch.nn.Module):
    """Has the wrapper inside, and the loss beside it, as timm's tasks have."""

    def __init__(self, ddp, *more):
        super().__init__()
        self.trained, self.more = ddp, torch.nn.ModuleList(more)

    def forward(self, x):
        return self.trained(x).sum()


@pytest.mark.parametrize(("more", "name"), [((), "ddp"), ((torch.nn.Linear(2, 2),), OWN)])
def test_a_wrapper_that_has_all_that_trains_is_followed_inside_of_what_is_called(ddp, tmp_path, more, name):
    task = Task(ddp, *more)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    with Probe(task, run_dir=tmp_path / "run") as probe:
        for _ in range(WARMUP + ROUND_STEPS):
            with probe.step():
                task(torch.ones(2, 4)).backward()
                optimizer.step()
    assert read_plan(RunFolder(tmp_path / "run")).spec.parallel.name == name
    buckets = json.loads((tmp_path / "run/launches/0/rank-0.jsonl").open().readline()).get("buckets", [])
    assert buckets == ([] if more else [sum(p.nbytes for p in ddp.parameters())])


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo"])
def test_the_backend_is_what_reduces_on_the_device(tmp_path, backend):
    """Not how the group was asked for: what NCCL reduces is stamped on the device."""
    where = f"file://{tmp_path / 'store'}"
    dist.init_process_group(backend, init_method=where, rank=0, world_size=1)
    try:
        assert backend_of(dist.group.WORLD, "cpu") == "gloo"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("key", ["static_graph", "find_unused_parameters"])
def test_no_baseline_where_ddp_would_count_it_in_the_training(ddp, tmp_path, capsys, key):
    ddp = DistributedDataParallel(ddp.module, **{key: True})
    with Probe(ddp, run_dir=tmp_path / "run") as probe:
        for index in range(WARMUP + ROUND_STEPS):
            if index == WARMUP + 2:
                probe.baseline(lambda module: pytest.fail("called"))
            with probe.step():
                ddp(torch.ones(2, 4)).sum().backward()
    assert (
        "baseline() was not measured: with static_graph or find_unused_parameters" in capsys.readouterr().err
    )
