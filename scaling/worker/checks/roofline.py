"""What a run's step asks for and its device gives, before the first round; some two seconds."""

from __future__ import annotations

from scaling.checkup import SCHEMA, Roofline
from scaling.files import write_json
from scaling.plan import Plan
from scaling.store import LaunchFolder
from scaling.worker.checks import ceilings
from scaling.worker.checks.steps import Bench
from scaling.worker.devices import Device
from scaling.worker.precision import Precision
from scaling.worker.workload import Workload


def note_roofline(
    plan: Plan, folder: LaunchFolder, workload: Workload, device: Device, precision: Precision, rank: int
) -> None:
    """Write roofline-<r>.json, all ranks at once, at the batch of the largest world size.

    A step that cannot be counted leaves none, and the run goes on: whether it fits, and what it raises under a
    mode that counts, is for the trial to find.
    """
    trial = max(plan.trials, key=lambda t: t.world_size)
    try:
        work = Bench(plan, trial, workload, device, precision, rank).work()
        found = ceilings.measure(device, (plan.spec.precision,)) if work.flops else ()
    except Exception as error:  # noqa: BLE001  # whatever a model may raise
        print(f"no roofline: {type(error).__name__}: {error}")
        return
    finally:
        workload.module.zero_grad(set_to_none=True)
        device.release_memory()
        device.reset_peak()
    record = Roofline(schema=SCHEMA, rank=rank, ceilings=found, work=work)
    write_json(folder.roofline(rank), record, indent=None)
