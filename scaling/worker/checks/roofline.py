"""Record a step's FLOPs and bytes and the device's ceilings before the first round. Takes about two seconds."""

from __future__ import annotations

from scaling.records.checkup import SCHEMA, Ceiling, Roofline, StepWork
from scaling.records.files import write_json
from scaling.worker.accelerator.precision import Precision
from scaling.worker.checks import ceilings
from scaling.worker.checks.steps import Bench, benched
from scaling.worker.data.workload import Workload
from scaling.worker.session.session import LaunchSession


def note_roofline(session: LaunchSession, workload: Workload, precision: Precision) -> None:
    """Write roofline-0.json from rank 0, while all ranks do the same, for the batch of the largest world size.

    A step that cannot be counted leaves no file and the run goes on. The trial itself then finds whether the step
    fits or fails.
    """
    device, spec = session.device, session.plan.spec

    def count(bench: Bench) -> tuple[StepWork, tuple[Ceiling, ...]]:
        work = bench.work()
        return work, ceilings.measure(device, (spec.precision,)) if work.flops else ()

    found = benched(session, workload, precision, "roofline", count)
    if found is not None and session.lead:
        work, known = found
        record = Roofline(schema=SCHEMA, rank=session.rank, ceilings=known, work=work)
        write_json(session.folder.roofline(session.rank), record, indent=None)
