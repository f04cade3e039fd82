"""One device by itself: kernels, streams, events, memory, random numbers, autocast."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from scaling_simulator.device import configure, exactly, host_ms, set_cost, sleep_us
from simulated_device import ranks

MS = 1_000_000


def timed():
    return torch.Event("sim", enable_timing=True)


def between_ns(begin, end):
    end.synchronize()
    return exactly(begin.elapsed_time(end))


def asynchronous(rank, world):
    configure(launch_us=5)
    set_cost(10_000, "aten::mm")
    x = w = torch.randn(64, 64, device="sim")
    torch.accelerator.synchronize()
    before = host_ms()
    for _ in range(10):
        x = torch.mm(x, w)
    launched = host_ms()
    torch.accelerator.synchronize()
    return exactly(launched - before), exactly(host_ms() - before)


def lists(rank, world):
    """In place, with new results, and a norm, over twenty tensors: (the launches, all of it, as on the CPU)."""
    configure(launch_us=5, kernel_us=2, memory_bytes_s=1e9)
    torch.manual_seed(0)
    host = [[torch.randn(100, 100) for _ in range(20)] for _ in range(2)]
    ours = [[t.to("sim") for t in each] for each in host]
    torch.accelerator.synchronize()
    before = host_ms()
    torch._foreach_add_(*ours, alpha=-0.1)
    doubled = torch._foreach_mul(ours[0], 2.0)
    norms = torch._foreach_norm(doubled)
    launched = exactly(host_ms() - before)
    torch.accelerator.synchronize()
    took = exactly(host_ms() - before)
    torch._foreach_add_(*host, alpha=-0.1)
    expected = [
        *host[0],
        *torch._foreach_mul(host[0], 2.0),
        *torch._foreach_norm(torch._foreach_mul(host[0], 2.0)),
    ]
    same = [torch.equal(a.cpu(), b) for a, b in zip([*ours[0], *doubled, *norms], expected, strict=True)]
    return launched, took, all(same)


def streams(rank, world):
    first, second = torch.Stream("sim:0"), torch.Stream("sim:0")
    found = {}
    for name, other in (("two", second), ("one", first)):
        begin, end = timed(), timed()
        torch.accelerator.synchronize()
        begin.record(first)
        with first:
            sleep_us(20_000)
        with other:
            sleep_us(20_000)
        first.wait_stream(other)
        end.record(first)
        done = end.query()
        found[name] = (between_ns(begin, end), done)
    begin, middle, end = timed(), timed(), timed()
    begin.record(second)
    with first:
        sleep_us(15_000)
    middle.record(first)
    second.wait_event(middle)
    with second:
        sleep_us(5_000)
    end.record(second)
    found["chain"] = between_ns(begin, end)
    return found


def learns_as_on_the_cpu(rank, world):
    torch.manual_seed(0)
    reference = nn.Sequential(
        nn.Embedding(50, 64), nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 50)
    )
    model = copy.deepcopy(reference).to("sim")
    tokens, targets = torch.randint(50, (4, 16)), torch.randint(50, (4, 16))
    for net, device in ((reference, "cpu"), (model, "sim")):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(3):
            loss = functional.cross_entropy(
                net(tokens.to(device)).flatten(0, 1), targets.to(device).flatten()
            )
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(reference.parameters(), model.parameters(), strict=True)
    return [torch.equal(a, b.cpu()) for a, b in pairs]


def convolution_gradients(rank, world):
    torch.manual_seed(0)
    reference = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)
    )
    model = copy.deepcopy(reference).to("sim")
    images = torch.randn(2, 3, 8, 8)
    for net, device in ((reference, "cpu"), (model, "sim")):
        net(images.to(device)).pow(2).sum().backward()
    return [
        torch.equal(a.grad, b.grad.cpu())
        for a, b in zip(reference.parameters(), model.parameters(), strict=True)
    ]


def attention_gradients(rank, world):
    torch.manual_seed(0)
    given = torch.randn(2, 4, 16, 8)
    grads = []
    for device in ("cpu", "sim"):
        q = given.clone().to(device).requires_grad_()
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        grads.append(q.grad.cpu())
    return float((grads[0] - grads[1]).abs().max())


def memory(rank, world):
    configure(capacity_bytes=64 << 20)
    accelerator = torch.accelerator
    accelerator.reset_peak_memory_stats()
    base = accelerator.memory_allocated()
    a = torch.empty(1 << 20, device="sim")
    held = accelerator.memory_allocated() - base
    b = torch.empty(2 << 20, device="sim")
    del a
    after, peak = accelerator.memory_allocated() - base, accelerator.max_memory_allocated() - base
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.empty(60 << 20, dtype=torch.uint8, device="sim")
    del b
    fits = torch.empty(60 << 20, dtype=torch.uint8, device="sim")
    return held, after, peak, str(refused.value), fits.numel(), accelerator.get_memory_info()[1]


def memory_of_a_capacity_that_falls(rank, world):
    accelerator, mib = torch.accelerator, 1 << 20
    configure(capacity_bytes=5 * mib)
    held = torch.empty(9 * mib // 2, dtype=torch.uint8, device="sim")
    accelerator.empty_cache()
    whole = accelerator.get_memory_info()
    configure(capacity_bytes=2 * mib)
    lowered = accelerator.get_memory_info()
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.empty(1, device="sim")
    del held
    accelerator.empty_cache()
    return whole, lowered, str(refused.value), accelerator.get_memory_info()


def memory_that_a_stream_uses(rank, world):
    configure(capacity_bytes=64 << 20)
    side = torch.Stream("sim:0")
    a = torch.empty(40 << 20, dtype=torch.uint8, device="sim")
    with side:
        sleep_us(30_000)
    a.record_stream(side)
    del a
    allocated, active = (
        torch.accelerator.memory_stats()[f"{kind}_bytes.all.current"] for kind in ("allocated", "active")
    )
    torch.empty(40 << 20, dtype=torch.uint8, device="sim")  # waits for the other stream instead of failing
    waited = host_ms()
    b = torch.empty(30 << 20, dtype=torch.uint8, device="sim")
    b.record_stream(side)
    del b
    torch.accelerator.synchronize()
    return allocated, active >> 20, waited, torch.accelerator.memory_stats()["active_bytes.all.current"]


def random_numbers(rank, world):
    def numbers():
        return torch.randn(3, device="sim").cpu(), functional.dropout(torch.ones(8, device="sim"), 0.5).cpu()

    torch.manual_seed(5)
    first = numbers()
    state = torch.sim.get_rng_state()
    second = numbers()
    torch.manual_seed(5)
    again = numbers()
    torch.sim.set_rng_state(state)
    restored = numbers()
    same = [
        all(map(torch.equal, pair[0], pair[1]))
        for pair in ((first, again), (second, restored), (first, second))
    ]
    return same, len(state)


def autocast_and_scaler(rank, world):
    net = nn.Linear(8, 8).to("sim")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=2.0**100)
    scales = []
    for _ in range(2):
        with torch.amp.autocast("sim", dtype=torch.float16):
            out = net(torch.ones(2, 8, device="sim"))
        scaler.scale(out.float().pow(2).sum()).backward()
        before = net.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append((scaler.get_scale(), torch.equal(before.cpu(), net.weight.detach().cpu())))
    return out.dtype, scales


def checkpointing(rank, world):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks = nn.Sequential(
        *[nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)) for _ in range(8)]
    ).to("sim")
    x = torch.randn(512, 256, device="sim")
    found = []
    for again in (False, True):
        blocks.zero_grad(set_to_none=True)
        torch.accelerator.reset_peak_memory_stats()
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False) if again else block(y)
        y.pow(2).sum().backward()
        found.append((torch.accelerator.max_memory_allocated(), blocks[0][0].weight.grad.cpu()))
    return found[0][0], found[1][0], torch.equal(found[0][1], found[1][1])


def shapes_that_depend_on_data(rank, world):
    values = torch.tensor([0, 1, 2.0], device="sim")
    mask = torch.tensor([True, False, True, False], device="sim")
    return (
        values.nonzero().flatten().tolist(),
        torch.arange(4, device="sim")[mask].tolist(),
        values.unique().tolist(),
    )


def devices(rank, world):
    with torch.device("sim:3"):
        z = torch.ones(4)
    where = torch.accelerator.memory_allocated(3)
    with torch.device("sim:3"):  # long in the making: a copy must not overtake it
        large = torch.ones(2**24)
    moved = large.to("sim:1")[-4:]
    with pytest.raises(RuntimeError, match="invalid device ordinal 8"):
        torch.accelerator.set_device_index(8)
    return (
        str(z.device),
        moved.sum().item(),
        where,
        torch.accelerator.device_count(),
        torch.get_device_module("sim").clock_ns() > 0,
    )


def copy_between_devices(rank, world):
    set_cost(10_000, "aten::mm")
    x = torch.ones(64, 64, device="sim:3")
    torch.accelerator.synchronize(3)
    before = host_ms()
    product = torch.mm(x, x)
    moved = product.to("sim:1")
    product.zero_()  # behind the copy, which is made on this stream
    launched = exactly(host_ms() - before)
    return launched, moved[0, 0].item(), exactly(host_ms() - before)


def loader_with_pinned_memory(rank, world):
    data = torch.utils.data.TensorDataset(torch.arange(16.0))
    batches = [b for (b,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)]
    return [(b.is_pinned(), b.to("sim", non_blocking=True).sum().item()) for b in batches]


def real_clock(rank, world):
    import time

    configure(virtual_clock=False, slip_us=1e9)
    begin, end = timed(), timed()
    torch.accelerator.synchronize()
    wall = time.perf_counter()
    begin.record()
    for _ in range(4):
        sleep_us(20_000)
    end.record()
    asked = end.query()
    end.synchronize()
    return exactly(begin.elapsed_time(end)), time.perf_counter() - wall, asked


pytestmark = pytest.mark.slow


def on_one(program):
    return ranks.run(program, group=False)[0]


def test_the_host_launches_and_goes_on():
    launched, done = on_one(asynchronous)
    assert launched == 10 * 5_000
    assert done == 10 * 10 * MS + 5_000  # the first one starts when its launch is done


def test_an_operator_over_a_list_is_one_kernel_as_on_a_gpu():
    launched, took, same = on_one(lists)
    assert same
    assert launched == 3 * 5_000
    tensors_us = 20 * 40_000 / 1e3  # at 1 GB/s
    # two read and one written, one and one, one read
    moved_us = (2 + 1) * tensors_us + 2 * tensors_us + tensors_us
    assert took == pytest.approx(1e3 * (5 + 3 * 2 + moved_us), rel=0.001)


def test_streams_run_beside_each_other_and_wait_for_events():
    found = on_one(streams)
    assert found["two"] == (20 * MS, False)
    assert found["one"] == (40 * MS, False)
    assert found["chain"] == 20 * MS


def test_a_training_ends_with_the_weights_of_the_cpu_to_the_last_bit():
    assert all(on_one(learns_as_on_the_cpu))
    assert all(on_one(convolution_gradients))


def test_gradients_of_attention_are_the_cpus_but_for_rounding():
    assert on_one(attention_gradients) < 2e-5


def test_memory_is_counted_and_has_an_end():
    held, after, peak, refused, fits, capacity = on_one(memory)
    assert (held, after, peak) == (4 << 20, 8 << 20, 12 << 20)
    assert (
        "sim out of memory. Tried to allocate 62914560 bytes. Device 0 has a capacity of 67108864 bytes"
        in refused
    )
    assert (fits, capacity) == (60 << 20, 64 << 20)


def test_nothing_is_free_where_more_is_held_than_the_capacity_is_now():
    whole, lowered, refused, empty = on_one(memory_of_a_capacity_that_falls)
    assert whole == (0, 5 << 20)
    assert lowered == (0, 2 << 20)
    assert "has a capacity of 2097152 bytes, of which 0 are free" in refused
    assert empty == (2 << 20, 2 << 20)


def test_memory_that_another_stream_uses_is_free_when_that_one_gets_there():
    assert on_one(memory_that_a_stream_uses) == (0, 40, 30.0, 0)


def test_random_numbers_follow_the_seed_and_the_state():
    (seeded, restored, different), size = on_one(random_numbers)
    assert seeded
    assert restored
    assert not different
    assert size == 16


def test_autocast_and_a_scaler_that_skips_a_step_which_overflowed():
    dtype, [(_, kept), *_] = on_one(autocast_and_scaler)
    assert dtype == torch.float16
    assert kept


def test_checkpointing_needs_less_memory_for_the_same_gradients():
    plain, checkpointed, same = on_one(checkpointing)
    assert checkpointed < 0.75 * plain
    assert same


def test_results_whose_shape_depends_on_data():
    assert on_one(shapes_that_depend_on_data) == ([1, 2], [0, 2], [0.0, 1.0, 2.0])


def test_several_devices():
    assert on_one(devices) == ("sim:3", 4.0, 512, 8, True)


def test_a_copy_between_devices_waits_for_its_source_on_the_stream_and_not_on_the_host():
    launched, value, done = on_one(copy_between_devices)
    assert (launched, value) == (0, 64.0)
    assert done == 10 * MS + 2_000  # the copy is a kernel


def test_a_loader_pins_what_goes_to_the_device():
    assert on_one(loader_with_pinned_memory) == [(True, 6.0), (True, 22.0), (True, 38.0), (True, 54.0)]


def test_on_the_real_clock_streams_take_their_time():
    by_events, wall_s, asked = on_one(real_clock)
    assert 80 * MS <= by_events <= wall_s * 1e9
    assert not asked
