"""The stamps of a step and the fields that are made of them."""

import pytest
import torch
from support.unit_steps import UNWAITED

from scaling.records.format import CollectiveRow, StepRow
from scaling.settings.run import Inject
from scaling.settings.schedule import PHASES
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.step import Loop, behind, step_row
from scaling.worker.parallel.strategy import BACKWARD, BUFFERS, FORWARD, Wait, done_in_time
from scaling.worker.parallel.torch_private import ENGINE

MS = 1_000_000
TOLERANCE_NS = 20_000


class Kernels(torch.nn.Linear):
    """A layer whose forward, backward and reduction take known times on the fake device."""

    def __init__(self, cuda, forward_ns=3 * MS, backward_ns=5 * MS, wait_ns=4 * MS):
        super().__init__(2, 2)
        self.cuda, self.forward_ns = cuda, forward_ns

        def backward(grad):
            cuda.enqueue(backward_ns)
            ENGINE.queue_callback(lambda: cuda.enqueue(wait_ns))  # as DDP makes the stream wait
            return grad

        self.weight.register_hook(backward)

    def forward(self, inputs):
        self.cuda.enqueue(self.forward_ns)
        return super().forward(inputs)


class Step(torch.optim.SGD):
    def __init__(self, parameters, cuda, ns):
        super().__init__(parameters, lr=1e-4)
        self.cuda, self.ns = cuda, ns

    def step(self, closure=None):
        self.cuda.enqueue(self.ns)
        return super().step(closure)


def make_loop(module, device, *, optimizer=None, accumulation=1, inject=None, precision="fp32"):
    workload = Workload(
        module=module, make_batch=lambda n, g: None, loss=torch.nn.functional.mse_loss, optimizer=sgd
    )
    return Loop(
        workload=workload,
        module=module,
        optimizer=optimizer or sgd(module.parameters()),
        fetch=Feed([(torch.ones(4, 2), torch.zeros(4, 2))]).fetch,
        accumulation=accumulation,
        device=device,
        precision=Precision(precision, "cpu"),
        faults=Faults(inject or Inject(), rank=0, first_on_host=False),
    )


def named(stamps, waits=()):
    return step_row(stamps, waits)._asdict()


def test_what_a_step_s_stamps_show_of_its_waits():
    """Two micro-steps, of which the last one reduces."""
    stamps = [100, 110, 130, 160, 210, 215, 230, 260, 310, 320, 330, 350, 0, 300]
    assert behind(stamps) == [(300, 310)]


def test_waits_inside_and_behind_backward():
    one = [100, 110, 130, 160, 210, 220, 230, 250, 205]
    row = step_row(one, [Wait(FORWARD, 132, 135), Wait(BACKWARD, 170, 180)], waits_behind=True)
    assert (row.forward_wait_ns, row.backward_wait_ns) == (3, 10)
    assert (row.compute_end_ns, row.sync_end_ns) == (205, 210)
    sharded = step_row(one, [Wait(FORWARD, 132, 135)], waits_behind=False)
    assert sharded.compute_end_ns == 210  # nothing is behind


def test_durations_are_sums_over_micro_steps():
    one = [100, 110, 130, 160, 210, 220, 230, 250, 205]
    assert named(one) == UNWAITED | {
        "begin_ns": 100,
        "end_ns": 250,
        "input_ns": 20,
        "forward_ns": 30,
        "backward_ns": 50,
        "optimizer_ns": 10,
        "compute_end_ns": 205,
        "sync_end_ns": 210,
    }
    two = [100, 110, 130, 160, 210, 1110, 1131, 1162, 1213, 1220, 1230, 1250, 0, 1205]
    fields = named(two)
    assert (fields["input_ns"], fields["forward_ns"], fields["backward_ns"]) == (20 + 21, 30 + 31, 50 + 51)
    assert (fields["compute_end_ns"], fields["sync_end_ns"]) == (1205, 1213)


def test_a_wait_of_an_earlier_micro_step_is_told_apart_from_its_compute():
    waited = [100, 110, 130, 160, 210, 1110, 1131, 1162, 1213, 1220, 1230, 1250, 190, 1205]
    assert named(waited)["earlier_wait_ns"] == 210 - 190


def test_the_broadcasts_of_buffers_are_summed_and_the_last_one_keeps_its_stamps():
    stamps = [100, 110, 130, 160, 210, 1110, 1131, 1162, 1213, 1220, 1230, 1250, 190, 1205]
    waits = [Wait(BUFFERS, 131, 136), Wait(BUFFERS, 1132, 1142)]
    fields = named(stamps, waits)
    assert fields["buffer_wait_ns"] == 5 + 10
    assert fields["forward_wait_ns"] == 0
    assert (fields["buffer_begin_ns"], fields["buffer_end_ns"]) == (1132, 1142)
    first = named(stamps, waits[:1])  # with no_sync, the second micro-step broadcasts nothing
    assert first["buffer_begin_ns"] == 131


@pytest.mark.parametrize(
    ("phase", "done_ms", "known_ms"),
    [
        ("backward", 93, 90),
        ("forward", 40, 40),
        ("backward", 0, 0),
        ("optimizer", 95, 95),
        ("other", 102, 100),
    ],
)
def test_a_collective_is_done_when_the_rank_goes_on_whenever_its_callback_ran(phase, done_ms, known_ms):
    step = StepRow(
        begin_ns=0,
        end_ns=100 * MS,
        input_ns=10 * MS,
        forward_ns=30 * MS,
        backward_ns=50 * MS,
        optimizer_ns=10 * MS,
        compute_end_ns=80 * MS,
        sync_end_ns=90 * MS,
    )
    done = CollectiveRow(
        0, 0, 2, 8, 0, 20 * MS, done_ms * MS, phase=PHASES.index(phase), resume_ns=done_ms * MS
    )
    row = done_in_time(done, step)
    assert (row.done_ns, row.resume_ns) == (known_ms * MS, known_ms * MS)


def test_a_plain_step_keeps_its_two():
    assert step_row([5, 9]) == (5, 9)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_host_stamps_of_a_real_step_are_in_order(accumulation):
    loop = make_loop(torch.nn.Linear(2, 2), Cpu(), accumulation=accumulation)
    stamps = loop.stamped()
    assert len(stamps) == loop.stamps
    count = 4 * accumulation + 4
    assert stamps[:count] == sorted(stamps[:count])
    assert stamps[count : count + accumulation - 1] == [0] * (accumulation - 1)  # nothing waits under no_sync
    fields = named(stamps)
    assert fields["begin_ns"] < fields["compute_end_ns"] < fields["sync_end_ns"] < fields["end_ns"]
    shares = [share_of_the_parts(named(loop.stamped())) for _ in range(20)]
    assert max(shares) <= 1
    assert sorted(shares)[10] > 0.5  # one step may lose the core between two stamps


def share_of_the_parts(fields):
    parts = sum(fields[f"{name}_ns"] for name in ("input", "forward", "backward", "optimizer"))
    return parts / (fields["end_ns"] - fields["begin_ns"])


@pytest.mark.parametrize(
    ("stall", "phase"),
    [("input", "input"), ("compute", "forward"), ("backward", "backward"), ("optimizer",) * 2],
)
def test_a_stall_shows_in_its_phase(stall, phase):
    loop = make_loop(torch.nn.Linear(2, 2), Cpu(), inject=Inject(**{f"{stall}_ms": 20}))
    loop._faults._on = True
    fields = named(loop.stamped())
    assert fields[f"{phase}_ns"] >= 20 * MS
    waited = fields["sync_end_ns"] - fields["compute_end_ns"]
    assert fields["backward_ns"] - waited >= (20 * MS if phase == "backward" else 0)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_on_a_device_the_parts_are_the_device_s_though_the_host_runs_ahead(cuda, fake_device, accumulation):
    module = Kernels(cuda)
    device = fake_device(cuda, copy_ns=2 * MS)
    optimizer = Step(module.parameters(), cuda, MS)
    loop = make_loop(module, device, optimizer=optimizer, accumulation=accumulation)
    with device.clock.window(3 * loop.stamps):
        made, waited, begin = cuda.created, cuda.synchronised, cuda.now
        steps = [loop.stamped() for _ in range(3)]
        assert (cuda.created, cuda.synchronised) == (made, waited)
        assert cuda.now - begin < MS  # of host time, for 45 ms of the device's
    for step in steps:
        fields = named(device.clock.resolve(step))
        expected = {"input_ns": 2, "forward_ns": 3, "backward_ns": 5 + 4}
        for name, ms in expected.items():
            assert fields[name] == pytest.approx(accumulation * ms * MS, abs=TOLERANCE_NS), name
        assert fields["optimizer_ns"] == pytest.approx(MS, abs=TOLERANCE_NS)
        assert fields["sync_end_ns"] - fields["compute_end_ns"] == pytest.approx(4 * MS, abs=TOLERANCE_NS)
        whole = accumulation * (2 + 3 + 5 + 4) + 1
        assert fields["end_ns"] - fields["begin_ns"] == pytest.approx(whole * MS, abs=TOLERANCE_NS)


def test_a_plain_step_on_a_device_has_two_events(cuda, fake_device):
    device = fake_device(cuda)
    loop = make_loop(Kernels(cuda), device)
    with device.clock.window(2):
        waited = cuda.synchronised
        step = loop.plain()
        assert cuda.synchronised == waited
    begin, end = device.clock.resolve(step)
    assert end - begin == pytest.approx((3 + 5 + 4) * MS, abs=TOLERANCE_NS)


def test_steps_train():
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    before = module.weight.detach().clone()
    loop = make_loop(module, Cpu())
    loop.stamped()
    assert not torch.equal(before, module.weight)
    assert module.weight.grad is None
