"""Measuring by cases: a model in several batches and modes, and the search for the largest batch."""

from __future__ import annotations

from scaling.files import read_json
from scaling.largest import MARGIN, MEASURE, PROVE, SCHEMA, Largest
from scaling.store import RunFolder
from scaling.worker.cases.inference import Inference
from scaling.worker.cases.runner import Runner
from scaling.worker.cases.search import Search
from scaling.worker.cases.study import Study
from scaling.worker.cases.training import Training
from scaling.worker.launch import Launch
from scaling.worker.memory import make_limit
from scaling.worker.options import loading
from scaling.worker.workload import Workload


def run_cases(launch: Launch, run: RunFolder, what: str) -> None:
    """One launch on one rank: a search, its proof, or the measurement."""
    spec = launch.spec
    largest = read_json(run.largest, Largest, SCHEMA) if spec.batch_max else None
    limit = make_limit(
        _limit_bytes(launch),
        launch.device.torch_device,
        margin=0.0 if what not in (PROVE, MEASURE) or not spec.batch_max else MARGIN,
    )
    workload = launch.open()
    runner = _runner(launch, workload)
    if what == MEASURE:
        Study(launch, runner, limit, largest).run()
    else:
        assert largest is not None
        Search(launch, runner, limit, largest).run(prove=what == PROVE)
    launch.close()


def _limit_bytes(launch: Launch) -> int | None:
    inject = launch.spec.inject
    if inject.memory_limit_bytes is not None and inject.rank in (None, launch.rank):
        return inject.memory_limit_bytes
    return launch.spec.memory_limit_bytes


def _runner(launch: Launch, workload: Workload) -> Runner:
    spec, device = launch.spec, launch.device
    if spec.task == "inference":
        load = loading(spec, device.load)
        return Inference(workload, device, seed=spec.seed + launch.rank, load=load)
    return Training(spec, workload, launch.groups, device, rank=launch.rank)
