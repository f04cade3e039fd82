"""The CUDA path on a real device: what the fakes assume of events, streams, autograd's thread and NCCL."""

import contextlib
import json
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.commands import run_scaling
from torch.nn.parallel import DistributedDataParallel

from scaling.settings.run import Inject
from scaling.worker.accelerator.accelerator import Precision
from scaling.worker.accelerator.devices import open_kind
from scaling.worker.checks.parity import sums
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.probe import SoloProbe
from scaling.worker.measure.step import Loop, step_row
from scaling.worker.parallel.ddp import bucket_bytes
from scaling.worker.parallel.streams import hold_up, stream_of
from scaling.worker.parallel.tap import Tap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

MS = 1_000_000
SPIN = 50_000_000
"""Accelerator clock cycles: some 30 ms."""


@pytest.fixture(scope="module")
def device():
    return open_kind("cuda")


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """NCCL over this rank alone, Gloo as the default."""
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield dist.new_group([0], backend="nccl", timeout=timedelta(seconds=60))
    dist.destroy_process_group()


@contextlib.contextmanager
def no_implicit_sync():
    """torch raises where a call of its own would make the host wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def layers(width=1024, depth=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)]).cuda()


def make_loop(module, inner, device, precision="fp32"):
    workload = Workload(
        module=inner, make_batch=lambda n, g: None, loss=torch.nn.functional.mse_loss, optimizer=sgd
    )
    return Loop(
        workload=workload,
        module=module,
        optimizer=sgd(inner.parameters()),
        fetch=Feed([device.stage((torch.randn(256, 1024), torch.randn(256, 1024)))]).fetch,
        accumulation=1,
        device=device,
        precision=Precision(precision, "cuda"),
        faults=Faults(Inject(), rank=0, first_on_host=True),
    )


def test_an_event_resolves_to_when_the_host_could_have_seen_it(device):
    with device.clock.window(2):
        begin = device.clock.stamp()
        torch.cuda._sleep(SPIN)
        end = device.clock.stamp()
        device.synchronize()
        seen = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    first, last = device.clock.resolve([begin, end])
    assert last - first > 5 * MS
    assert abs(seen - last) < 200_000 + device.clock.bound_ns
    assert device.clock.bound_ns < 200_000


def test_the_device_clock_agrees_with_the_host_s_over_a_second(device):
    stamps, seen = [], []
    with device.clock.window(20):
        for _ in range(20):
            time.sleep(0.05)
            stamps.append(device.clock.stamp())
            device.synchronize()
            seen.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
    late = [s - t for s, t in zip(seen, device.clock.resolve(stamps), strict=True)]
    assert min(late) > -device.clock.bound_ns - 2_000
    assert sorted(late)[10] < 200_000


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_nothing_synchronises_inside_a_step(device, precision):
    module = layers()
    loop = make_loop(module, module, device, precision)
    with device.clock.window(20 * loop.stamps), no_implicit_sync():
        steps = [loop.stamped() for _ in range(20)]
    for step in steps[5:]:
        fields = step_row(device.clock.resolve(step))._asdict()
        order = [fields[f"{name}_ns"] for name in ("begin", "compute_end", "sync_end", "end")]
        assert order == sorted(order)
        assert all(fields[f"{name}_ns"] > 0 for name in ("input", "forward", "backward", "optimizer"))


def test_compute_end_is_behind_all_of_backward_s_kernels(device):
    module = layers(depth=2)
    module[0].weight.register_hook(lambda grad: (torch.cuda._sleep(SPIN), grad)[1])  # autograd's last node
    loop = make_loop(module, module, device)
    with device.clock.window(4 * loop.stamps):
        steps = [loop.stamped() for _ in range(4)]
    fields = step_row(device.clock.resolve(steps[-1]))._asdict()
    assert fields["backward_ns"] > 5 * MS
    assert fields["sync_end_ns"] - fields["compute_end_ns"] < MS


def test_fp16_trains(device):
    module = layers()
    loop = make_loop(module, module, device, "fp16")
    before = module[0].weight.detach().clone()
    for _ in range(20):
        loop.plain()
    assert torch.isfinite(module[0].weight).all()
    assert not torch.equal(before, module[0].weight)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_device_can_be_kept_busy_with_one_small_kernel(device, deterministic):
    torch.use_deterministic_algorithms(deterministic)
    try:
        device.spin(0.01)
        with device.clock.window(10):
            begin = device.clock.stamp()
            device.spin(0.02)
            end = device.clock.stamp()
    finally:
        torch.use_deterministic_algorithms(False)
    first, last = device.clock.resolve([begin, end])
    assert 10 * MS < last - first < 40 * MS


def test_a_communicator_s_stream_is_found_and_its_stamps_enclose_the_kernel(device, group, monkeypatch):
    stream = stream_of(group, device)
    assert stream is not None
    monkeypatch.setitem(Tap.streams, group.group_name, stream)
    sent, tap = torch.ones(2**20, device="cuda"), Tap(device.clock)
    with tap.on(), device.clock.window(50):
        begin = device.clock.stamp()
        torch.cuda._sleep(SPIN)  # the host is through with the call long before the device begins it
        dist.all_reduce(sent, group=group, async_op=True).wait()
        end = device.clock.stamp()
    (seen,) = tap.take()
    begun, launch, start, done, ended = device.clock.resolve([begin, seen.launch, seen.start, seen.done, end])
    assert begun + 5 * MS < launch <= start <= done <= ended


def test_stamps_of_a_communicator_hold_nothing_up(device, group, monkeypatch):
    monkeypatch.setitem(Tap.streams, group.group_name, stream_of(group, device))
    assert not hold_up([Tap.streams[group.group_name]], device)


def test_ready_times_alone_on_nccl(device, group):
    ddp = DistributedDataParallel(layers(), process_group=group, bucket_cap_mb=4)
    batch = torch.randn(256, 1024, device="cuda")
    for _ in range(3):
        ddp(batch).square().mean().backward()
    with SoloProbe(ddp, device).taking() as take, device.clock.window(50):
        ddp(batch).square().mean().backward()
        rows = [list(row) for row in take(0).collectives]
    ready = [device.clock.resolve(row)[4] for row in rows]
    assert len(ready) == len(bucket_bytes(ddp))
    assert ready == sorted(ready)
    assert ready[0] > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_tensor_has_the_same_sums_on_the_device(dtype):
    tensor = torch.randn(3 * 2**20 + 7).to(dtype)
    assert sums(tensor.cuda()) == sums(tensor)


@pytest.mark.launch
@pytest.mark.parametrize(
    "overrides",
    [
        ["world_sizes=[1]", "topology.ranks_per_host=1"],
        ["world_sizes=[1,2]", "topology.ranks_per_host=2", "topology.backend=gloo"],
        ["world_sizes=[1]", "topology.ranks_per_host=1", "precision=fp16"],
    ],
    ids=["nccl", "gloo-sharing-a-device", "fp16"],
)
def test_a_run(tmp_path, overrides):
    run = tmp_path / "run"
    words = ["topology=local", "topology.device=cuda", "model=mlp", "measure=quick", "measure.budget_s=8"]
    done = run_scaling(
        "run", *words, "tracking=disabled", f"run_dir={run}", *overrides, cwd=tmp_path, timeout_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((run / "launches/0/env-0.json").read_text())
    assert found["device"] == "cuda"
    assert found["device_name"]
    assert found["compute_capability"]
    memory = json.loads((run / "launches/0/memories-0.jsonl").read_text().splitlines()[0])
    assert memory["peak_bytes"] > 2**20
    assert 0 < memory["device_clock_bound_ns"] < MS
