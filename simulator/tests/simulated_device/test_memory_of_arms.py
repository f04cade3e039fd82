"""A model that trains alone in nine tenths of a device is measured there: every arm, at every world size."""

import pytest

from simulated_device import ranks

SHARE = 0.90
BATCH = 32
SIZES = (1, 2, 4)


def _workload():
    import torch

    from scaling.worker.data.workload import Workload

    torch.manual_seed(0)
    return Workload(
        module=torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]),
        make_batch=lambda n, generator: (torch.randn(n, 512, generator=generator),) * 2,
        loss=lambda outputs, targets: (outputs - targets).square().mean(),
        optimizer=torch.optim.AdamW,
    )


def alone_bytes(rank, world, batch=BATCH):
    """The peak of a training with DDP as anybody writes it, with nothing else in the process."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    workload = _workload()
    module = workload.module.to(f"sim:{rank}")
    optimizer = workload.optimizer(module.parameters())
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    samples = workload.make_batch(batch, torch.Generator().manual_seed(0))
    for _ in range(5):
        inputs, targets = (t.to(f"sim:{rank}") for t in samples)
        workload.loss(ddp(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated()


def _measured(rank, world, capacity):
    """(whether it fits, the peak of each arm) by world size."""
    from datetime import timedelta

    from scaling.config.compose import requests
    from scaling.settings.plan import Trial
    from scaling.settings.run import Inject
    from scaling.worker.accelerator.accelerator import Precision
    from scaling.worker.data.feed import open_feed
    from scaling.worker.measure.arms import Arms
    from scaling.worker.measure.inject import Faults
    from scaling.worker.measure.prepare import fits
    from scaling.worker.parallel.groups import make_groups
    from scaling_simulator.accelerator import SimulatedAccelerator
    from scaling_simulator.device import configure

    configure(capacity_bytes=capacity)
    asked = ("model=mlp", "topology=local", "topology.device=sim", "topology.ranks_per_host=4")
    spec = requests("plan", [*asked, f"batch_per_rank={BATCH}"]).items[0].spec
    device, workload = SimulatedAccelerator(rank), _workload()
    workload.module.to(device.torch_device)
    groups = make_groups(
        {n: [tuple(range(first, first + n)) for first in range(0, world, n)] for n in SIZES},
        rank=rank,
        world=world,
        backend="simccl",
        timeout=timedelta(seconds=60),
    )
    optimizer = workload.optimizer(workload.module.parameters())
    found = {}
    for n in SIZES:
        arms = Arms(
            spec=spec,
            variant=None,
            trial=Trial(world_size=n, hosts=1, batch=BATCH),
            workload=workload,
            optimizer=optimizer,
            groups=groups,
            device=device,
            precision=Precision("fp32", "sim"),
            faults=Faults(Inject(), rank=rank, first_on_host=False),
            feed=lambda batch: open_feed(spec, workload, batch, rank=rank, device=device),
        )
        fitting, peaks = fits(arms), {}
        for arm, detailed, half in arms.warmed():
            device.reset_peak()
            with arms.open(arm, detailed=detailed, half=half) as opened:
                for _ in range(3):
                    opened.loop.stamped()
            device.synchronize()
            peaks[arm] = max(peaks.get(arm, 0), device.peak_bytes())
        found[n] = fitting, peaks, arms.held, arms.activations_bytes
    return found


def test_no_arm_takes_more_than_the_training_itself():
    alone = max(ranks.run(alone_bytes, 4))
    for found in ranks.run(_measured, 4, capacity=int(alone / SHARE)):
        for fitting, peaks, held, activations in found.values():
            assert fitting
            assert peaks["plain"] == pytest.approx(alone, rel=0.02)
            assert max(peaks.values()) <= alone * 1.02
            assert held["parameters"] == held["gradients"] == 4 * 4 * (512 * 512 + 512)
            assert held["optimizer"] == pytest.approx(2 * held["parameters"], rel=1e-3)
            assert 0 < activations < 0.2 * held["parameters"]
        assert {*found[4][1]} == {"bare_all", "ddp_solo", "probe", "plain"}
