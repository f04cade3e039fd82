"""Record a step's FLOPs and bytes and the device's ceilings before the first round. Takes about two seconds."""

from __future__ import annotations

from scaling.records.checkup import SCHEMA, Roofline
from scaling.records.files import write_json
from scaling.worker.accelerator.precision import Precision
from scaling.worker.checks import ceilings
from scaling.worker.checks.steps import Bench
from scaling.worker.data.workload import Workload
from scaling.worker.session.session import LaunchSession


def note_roofline(session: LaunchSession, workload: Workload, precision: Precision) -> None:
    """Write roofline-<r>.json on all ranks at once, for the batch of the largest world size.

    A step that cannot be counted leaves no file and the run goes on. The trial itself then finds whether the step
    fits or fails.
    """
    plan, device, rank = session.plan, session.device, session.rank
    trial = max(plan.trials, key=lambda t: t.world_size)
    try:
        work = Bench(plan, trial, workload, device, precision, rank).work()
        found = ceilings.measure(device, (plan.spec.precision,)) if work.flops else ()
    except Exception as error:  # noqa: BLE001  # a model may raise anything
        print(f"no roofline: {type(error).__name__}: {error}")
        return
    finally:
        workload.module.zero_grad(set_to_none=True)
        device.release_memory()
        device.reset_peak()
    record = Roofline(schema=SCHEMA, rank=rank, ceilings=found, work=work)
    write_json(session.folder.roofline(rank), record, indent=None)
