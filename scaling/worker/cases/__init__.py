"""Measure a model case by case (batches, precisions, modes), and search for the largest batch."""

from __future__ import annotations

from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.settings.cases import MARGIN, MEASURE, PROVE, SCHEMA, Largest
from scaling.worker.cases.programs import Inference, Training
from scaling.worker.cases.runner import Runner, Study
from scaling.worker.cases.search import Search
from scaling.worker.data.workload import Workload
from scaling.worker.session.session import LaunchSession


def run_cases(session: LaunchSession, run: RunFolder, what: str) -> None:
    """Run one launch on one rank: a search for the largest batch, its proof, or the measurement."""
    spec = session.spec
    largest = read_json(run.largest, Largest, SCHEMA) if spec.batch_max else None
    margin = MARGIN if spec.batch_max and what in (PROVE, MEASURE) else 0.0
    limit = session.device.limit(_limit_bytes(session), margin=margin)
    runner = _runner(session, session.open_workload())
    if what == MEASURE:
        Study(session, runner, limit, largest).run()
    else:
        assert largest is not None
        Search(session, runner, limit, largest).run(prove=what == PROVE)
    session.close()


def _limit_bytes(session: LaunchSession) -> int | None:
    inject = session.spec.inject
    if inject.memory_limit_bytes is not None and inject.rank in (None, session.rank):
        return inject.memory_limit_bytes
    return session.spec.memory_limit_bytes


def _runner(session: LaunchSession, workload: Workload) -> Runner:
    spec, device = session.spec, session.device
    if spec.task == "inference":
        return Inference(spec, workload, device, rank=session.rank)
    return Training(spec, workload, session.groups, device, rank=session.rank)
