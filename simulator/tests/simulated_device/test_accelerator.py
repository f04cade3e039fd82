"""What the program asks of an accelerator, asked of a real one that is simulated."""

from simulated_device import ranks

MIB = 2**20
GIB = 2**30
MS = 1_000_000


def opened(**settings):
    from scaling.settings.topology import SimulatedDevice
    from scaling.worker.accelerator.devices import open_kind

    return open_kind("sim", SimulatedDevice(**settings))


def test_a_device_s_generator_is_put_back_with_the_host_s():
    assert ranks.run(_generators, group=False) == [(True, True)]


def _generators(rank, world):
    import torch

    device = opened()

    def drawn():
        return [torch.rand(3).tolist(), torch.rand(3, device=device.torch_device).tolist()]

    states = device.random_state()
    first = drawn()
    differ = drawn() != first
    device.set_random_state(states)
    return differ, drawn() == first


def test_memory_is_that_of_tensors_and_what_torch_does_not_know_of_is_foreign():
    ((held, peak, later, foreign),) = ranks.run(_memory, group=False)
    assert (held, peak, later, foreign) == (4 * MIB, 12 * MIB, 4 * MIB, 0)


def _memory(rank, world):
    import torch

    device = opened()
    kept = torch.zeros(MIB, device=device.torch_device)
    gone = torch.zeros(2 * MIB, device=device.torch_device)
    del gone
    device.release_memory()
    found = device.held_bytes(), device.peak_bytes()
    device.reset_peak()
    del kept
    return *found, device.peak_bytes(), device.foreign_bytes()


def test_it_says_what_it_is():
    ((formats, name, size, kind),) = ranks.run(_facts, group=False)
    assert formats == ("fp64", "fp32", "bf16", "fp16")
    assert (name, size, kind) == ("Simulated accelerator", 3 * GIB, "sim:0")


def _facts(rank, world):
    device = opened(capacity_bytes=3 * GIB)
    facts = device.facts()
    return device.formats(), facts["device_name"], facts["device_memory_bytes"], str(device.torch_device)


def test_a_stamp_is_an_event_on_the_virtual_clock_and_the_host_s_stamps_come_from_there():
    ((span, ahead, bound),) = ranks.run(_stamps, group=False)
    assert abs(span - 5 * MS) <= 10_000  # the launches beside the kernel
    assert ahead < MS  # the host did not wait for it
    assert bound <= 10_000


def _stamps(rank, world):
    from scaling.worker.accelerator.clock import now_ns
    from scaling_simulator.device import sleep_us

    device = opened()
    with device.clock.window(4):
        host = now_ns()
        begin = device.clock.stamp()
        sleep_us(5000)
        end = device.clock.stamp()
        ahead = now_ns() - host
    first, last = device.clock.resolve([begin, end])
    return last - first, ahead, device.clock.bound_ns


def test_where_ranks_wait_on_the_host_their_clocks_go_on_together():
    first, second = ranks.run(_barrier, 2)
    assert first == second


def _barrier(rank, world):
    import torch.distributed as dist

    from scaling.worker.accelerator.clock import now_ns
    from scaling_simulator.accelerator import SimulatedAccelerator
    from scaling_simulator.device import host_spend_us

    control = dist.new_group([0, 1], backend="gloo")
    device = SimulatedAccelerator(rank)
    host_spend_us(7000.0 * rank)
    device.barrier(control)
    return now_ns()


def test_its_memory_can_be_limited_and_limited_again():
    ((limited, size, again),) = ranks.run(_limited, group=False)
    assert limited
    assert size == 3 * GIB  # as a GPU's, whose limit is the allocator's
    assert again


def _limited(rank, world):
    import torch

    device = opened(capacity_bytes=3 * GIB)

    def fits(size):
        try:
            torch.empty(size, dtype=torch.uint8, device=device.torch_device)
        except torch.OutOfMemoryError:
            return False
        finally:
            device.release_memory()
        return True

    device.limit(GIB)
    limited = fits(GIB // 2) and not fits(2 * GIB)
    device.limit(2 * GIB, margin=0.5)
    again = fits(GIB // 2) and not fits(GIB + MIB)
    size = device.facts()["device_memory_bytes"]
    device.limit(None)
    return limited, size, again and fits(2 * GIB)


def test_what_is_only_timed_takes_its_time_and_computes_nothing_large():
    ((alike, zeros, computed),) = ranks.run(_timed, group=False)
    assert alike
    assert (zeros, computed) == (True, True)


def _timed(rank, world):
    import torch

    from scaling.worker.accelerator.clock import now_ns

    device = opened(arithmetic=True)

    def product():
        x = torch.ones(512, 512, device=device.torch_device)
        device.synchronize()
        begin = now_ns()
        found = torch.mm(x, x)
        device.synchronize()
        return now_ns() - begin, float(found[0, 0].item())

    with device.only_timed():
        took, nothing = product()
    again, value = product()
    return took == again, nothing == 0, value == 512
