"""Streams that share in-order work queues: what holds up what, and that details leave a step as it is."""

import pytest
from support.tables import unchecked

from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling.records.tables import in_memory
from simulated_device import ranks

KERNEL_US, LATE_US = 1_000, 20_000


@pytest.fixture(scope="module")
def queues(simulated_parts):
    return simulated_parts("queues")


def beside(rank, world, connections=8, end="none"):
    """Milliseconds of a rank's kernels beside eight all-reduces for which rank 1 is late."""
    import torch
    import torch.distributed as dist

    from scaling_simulator.device import configure, line, set_link, sleep_us

    configure(launch_us=2, connections=connections, math=False)
    set_link(line(latency_us=20, gb_s=20))
    sent = [torch.ones(2**18, device="sim") for _ in range(8)]
    dist.all_reduce(sent[0])
    torch.accelerator.synchronize()
    begin, over = (torch.Event("sim", enable_timing=True) for _ in range(2))
    ends = []

    def stamp(_future):
        ends.append(torch.Event("sim", enable_timing=True))
        ends[-1].record()

    begin.record()
    if rank == 1:
        sleep_us(LATE_US)
    works = []
    for tensor in sent:
        sleep_us(KERNEL_US)
        works.append(dist.all_reduce(tensor, async_op=True))
        if end == "stream that waits":
            works[-1].get_future().add_done_callback(stamp)
    sleep_us(KERNEL_US)
    over.record()
    for work in works:
        work.wait()
    torch.accelerator.synchronize()
    return begin.elapsed_time(over)


@pytest.mark.parametrize("connections", [2, 8, 32])
def test_kernels_run_beside_a_transfer_that_waits_for_a_late_rank(connections):
    first, late = ranks.run(beside, 2, connections=connections)
    assert first == pytest.approx(9 * KERNEL_US / 1e3, rel=0.02)
    assert late == pytest.approx(first + LATE_US / 1e3, rel=0.02)


def test_in_one_queue_a_collective_behind_one_that_waits_holds_up_kernels():
    first, late = ranks.run(beside, 2, connections=1)
    assert first > LATE_US / 1e3
    assert late >= first


@pytest.mark.parametrize("connections", [2, 8])
def test_a_stream_that_waits_for_a_collective_holds_up_kernels(connections):
    first, _ = ranks.run(beside, 2, connections=connections, end="stream that waits")
    assert first > LATE_US / 1e3


def models(rank, world):
    """Numbers of the streams that three models take, one made after the other, of both priorities."""
    import torch

    from scaling.worker.accelerator.devices import device_of
    from scaling.worker.parallel.streams import rewind

    device = device_of(torch.ones(1, device="sim"))
    taken = []
    for _ in range(3):
        rewind(device)
        taken.append([torch.Stream("sim", priority=high).stream_id for high in (-1, -1, -1, 0, 0)])
    return taken


def test_a_later_model_takes_the_streams_of_the_first_one():
    first, *later = ranks.run(models, 1)[0]
    assert len(set(first)) == 5
    assert later == [first, first]


def computing_on_a_stream_of_the_pool(rank, world):
    """Whether the stream of the default group is found."""
    import torch
    import torch.distributed as dist

    from scaling.worker.accelerator.devices import device_of
    from scaling.worker.parallel.streams import stream_of

    with torch.Stream("sim"):
        return stream_of(dist.group.WORLD, device_of(torch.ones(1, device="sim"))) is not None


def test_a_communicator_s_stream_is_told_from_the_one_that_computes():
    assert ranks.run(computing_on_a_stream_of_the_pool, 2) == [True, True]


def of_two_minds(rank, world, folder):
    """A loop of two ranks, of which the second one alone finds that its stamps hold up other streams."""
    from unittest.mock import patch

    from simulated_parts import queues

    from scaling.worker.probe import follow

    with patch.object(follow, "withheld", lambda *_: "disturbs" if rank else ""):
        queues.loop(rank, world, folder, "DDP", 8, late_ms=0, wait_us=0, old=False)


@pytest.mark.usefixtures("queues")
def test_no_rank_of_a_loop_stamps_what_disturbs_one_of_them(tmp_path):
    ranks.run(of_two_minds, 2, folder=str(tmp_path / "run"))
    run = RunFolder(tmp_path / "run")
    tables = unchecked(run)  # its files go with it
    blocks = in_memory(tables.blocks)
    assert sorted(set(blocks.select("rank", "withheld").rows())) == [
        (0, ""),
        (0, "disturbs"),
        (1, ""),
        (1, "disturbs"),
    ]
    assert not any(blocks["detailed"])


def by_hand(rank, world, folder, hooked, shared):
    """A loop that reduces its own gradients, late on rank 1, whose communicator may share the queue that computes."""
    import torch
    import torch.distributed as dist

    from scaling import Probe
    from scaling_simulator.device import configure, line, set_cost, set_link, sleep_us

    configure(launch_us=2, math=False, connections=8)
    set_link(line(20, 2.0))
    set_cost(700, "aten::mm", "aten::addmm")
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(8)]).to("sim")
    torch.ones(1, device="sim").add_(1)
    # each takes the next queue, and the communicator's the one behind them
    for _ in range(7 if shared else 8):
        with torch.Stream("sim"):
            torch.ones(1, device="sim").add_(1)
    dist.all_reduce(torch.ones(1, device="sim"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs, works = torch.ones(16, 512), []
    if hooked:
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
            )
    with Probe(net, run_dir=folder) as probe:
        for _ in range(95):
            with probe.step():
                here = inputs.to("sim")
                if rank == 1:
                    sleep_us(LATE_US)
                net(here).square().mean().backward()
                if not hooked:
                    works.extend(dist.all_reduce(p.grad, async_op=True) for p in net.parameters())
                for work in works:
                    work.wait()
                works.clear()
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_who_waits_in_the_queue_that_computes_hides_no_late_rank(tmp_path, hooked, shared):
    ranks.run(by_hand, 2, folder=str(tmp_path / "run"), hooked=hooked, shared=shared)
    analysis = rebuild(RunFolder(tmp_path / "run")).analysis
    late = analysis.points[0].straggler
    assert (late.rank, late.phase) == (1, "input")
    assert late.cost_ms.value == pytest.approx(LATE_US / 1e3, rel=0.02)
    assert analysis.verdicts[0].cause == "straggler"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "connections"),
    [("DDP", 8), ("DDP", 1), ("DDP, BatchNorm", 8), ("FSDP", 8), ("HSDP", 8), ("TP", 2), ("by hand", 1)],
)
def test_the_late_rank_its_phase_and_its_cost_are_told_and_details_cost_nothing(
    tmp_path, queues, strategy, connections
):
    found = queues.cell(tmp_path / "run", strategy, connections)
    late = found.point.straggler
    assert (late.rank, late.phase) == (queues.STRATEGIES[strategy] - 1, "input")
    assert late.cost_ms.value == pytest.approx(queues.LATE_MS, rel=0.02)
    assert found.causes == ("straggler",)
    # the wait in one queue is none of its own
    assert found.point.parts_ms.optimizer.value < queues.LATE_MS / 4
    assert found.withheld == (("disturbs",) if connections == 1 else ())
    if connections > 1:
        assert found.details_cost < 0.01


@pytest.mark.slow
def test_ends_stamped_on_streams_that_wait_made_the_other_rank_as_late(tmp_path, queues):
    found = queues.cell(tmp_path / "run", "DDP", 8, old=True)
    assert found.details_cost > 0.3
