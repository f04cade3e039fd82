"""Everything derived from the rank files: tables, analysis.json, timeline, reports. It can be deleted and rebuilt."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from scaling import checkup
from scaling import plan as plans
from scaling.analysis import clocks, memory
from scaling.analysis.analyze import Ending, analyze
from scaling.analysis.cases import CaseFiles, analyze_cases
from scaling.analysis.history import histories
from scaling.analysis.launches import span_ns
from scaling.analysis.machines import Machine, machines
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Memory,
    NcclLog,
    RooflineResult,
    StepHistory,
    Timeline,
)
from scaling.analysis.roofline import roofline
from scaling.analysis.timeline import chrome, timelines
from scaling.cases import SCHEMA as CASES_SCHEMA
from scaling.cases import Outcome, Outcomes
from scaling.collect import collect, own_plan, write_tables
from scaling.doctor import preflight
from scaling.endings import endings
from scaling.errors import InputError, ScalingError
from scaling.files import read_json, write_json, write_text
from scaling.fit import read_largest
from scaling.plan import Plan
from scaling.report.html import page
from scaling.report.markdown import markdown
from scaling.report.terminal import print_analysis
from scaling.status import SCHEMA as STATUS_SCHEMA
from scaling.status import Status
from scaling.store import RunFolder
from scaling.trace import nccl_log
from scaling.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A run read back from its facts."""

    plan: Plan
    analysis: Analysis
    timelines: tuple[Timeline, ...]
    histories: tuple[StepHistory, ...]

    @property
    def exit_code(self) -> int:
        """0, or 3 when some trial or case is not whole."""
        return 0 if self.analysis.whole else 3


def read_plan(folder: RunFolder) -> Plan:
    """The plan of a run's folder, or the one that an own loop's records bring along; InputError when it is none."""
    if not folder.require().plan.is_file():
        found = own_plan(folder)
        if found is None:
            raise InputError(f"{folder.path}: no plan.json, and no rank file in it begins with a plan")
        return found
    return read_json(folder.plan, Plan, plans.SCHEMA)


def read_config(folder: RunFolder) -> str:
    """A run's config.yaml, which overrides change; InputError where there is none, as beside traces and own loops."""
    try:
        return folder.config.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{folder.config}: cannot be read ({error.strerror}); overrides change it, and only what `scaling run` "
            "made has one, not records of a Probe or traces"
        ) from error


def read_analysis(folder: RunFolder) -> Analysis:
    """analysis.json, rebuilt when it is not there."""
    if not folder.require().analysis.is_file():
        return rebuild(folder).analysis
    return read_json(
        folder.analysis, Analysis, SCHEMA, remedy=f"`scaling analyze {folder.path}` makes it again"
    )


def rebuild(folder: RunFolder) -> Rebuilt:
    """Rank files to everything after them. ScalingError when not one block was measured."""
    plan = read_plan(folder)
    if plan.spec.launcher == "trace":
        raise InputError(f"{folder.path}: made from profiler traces; run `scaling trace` on them again")
    status = _status(folder)
    tables = collect(folder, plan)
    sampled = clocks.with_telemetry(tables.blocks, preflight.samples(folder, plan))
    tables = dataclasses.replace(tables, blocks=sampled)
    trials = endings(plan, status, tables)
    if tables.steps.is_empty():
        said = next((t.error for t in trials if t.error), "no worker wrote a record")
        raise ScalingError(f"{folder.path}: nothing was measured: {said}")
    write_tables(folder, tables)
    grown = memory.growth(tables.memory, tables.blocks)
    ending = Ending(
        duration_s=status.duration_s if status else span_ns(tables.blocks) / 1e9,
        launches=len({rank.launch for rank in tables.ranks}),
        trials=trials,
        memory={n: _memory(folder, n) for n in plan.spec.world_sizes},
        warnings=(
            *(() if plan.spec.by_case else _unseen(folder, plan)),
            *preflight.warnings(folder, plan),
            *memory.warnings(grown),
            *clocks.warnings(tables.blocks),
        ),
        device_name=str(_environment(folder).get("device_name") or ""),
        nccl=_nccl(folder, plan),
        device_clock_bound_ns=_device_clock_bound_ns(folder, plan),
        stolen=preflight.stolen(folder, plan),
    )
    if plan.spec.by_case:
        files = CaseFiles(outcomes=_outcomes(folder), largest=read_largest(folder))
        analysis = analyze_cases(tables, plan, ending, files)
    else:
        analysis = analyze(tables, plan, ending)
    analysis = dataclasses.replace(analysis, memory=grown)
    if analysis.points:
        analysis = dataclasses.replace(analysis, roofline=_roofline(folder, plan, analysis))
    write_json(folder.analysis, analysis)
    drawn = timelines(tables, plan)
    steps = histories(tables, plan, preflight.states(folder, plan))
    write_text(folder.timeline, chrome(drawn))
    write_text(folder.report_html, page(analysis, plan, drawn, steps, _machines(folder, plan)))
    write_text(folder.report_md, markdown(analysis, plan))
    text = io.StringIO()
    print_analysis(
        Console(file=text, width=80, no_color=True), analysis, plan, report_path=folder.report_html
    )
    write_text(folder.report_txt, text.getvalue())
    return Rebuilt(plan=plan, analysis=analysis, timelines=drawn, histories=steps)


def _machines(folder: RunFolder, plan: Plan) -> tuple[Machine, ...]:
    """What the ranks of the last launch that left something ran on."""
    for launch in reversed(folder.launches()):
        found = preflight.environments(launch, plan)
        if found:
            return machines(found)
    return ()


def _unseen(folder: RunFolder, plan: Plan) -> tuple[str, ...]:
    """Traffic of DDP that is in the step time and not in `comm`."""
    said = []
    buffers = int(_environment(folder).get("buffers_bytes", 0))
    if buffers and plan.ranks > 1:
        said.append(
            f"the module has {format_bytes(buffers)} of buffers: DDP broadcasts them before every forward, "
            "which is in the step time and not in the gradients' traffic"
        )
    if plan.spec.ddp.find_unused_parameters and plan.ranks > 1:
        said.append(
            "find_unused_parameters: its extra all-reduce is in the step time and not in the gradients' traffic"
        )
    return tuple(said)


def _roofline(folder: RunFolder, plan: Plan, analysis: Analysis) -> RooflineResult | None:
    """Rank 0's step without DDP, beside all others where it was measured so, against its ceilings."""
    largest = max(analysis.points, key=lambda p: p.world_size)
    step = largest.arms_ms.bare_all or largest.arms_ms.bare_one or largest.step_ms
    for launch in folder.launches():
        with contextlib.suppress(ScalingError):
            record = read_json(launch.roofline(0), checkup.Roofline, checkup.SCHEMA)
            if step is None:
                return None
            name = preflight.environments(launch, plan).get(0, {})
            batches = {t.world_size: t.batch for t in plan.trials}
            return roofline(
                record.ceilings,
                record.work,
                step,
                rank=0,
                device=f"{analysis.run.device}: {name.get('device_name') or name.get('cpu')}",
                input_ms=largest.parts_ms.input,
                mfu_at={
                    str(p.world_size): p.step_ms
                    for p in analysis.points
                    if p.step_ms and batches[p.world_size] == record.work.batch
                },
            )
    return None


def _nccl(folder: RunFolder, plan: Plan) -> NcclLog | None:
    """What NCCL said of itself in the last launch in which it said anything."""
    if plan.spec.topology.backend != "nccl":
        return None
    said = (nccl_log.read_files(launch.nccl_logs()) for launch in reversed(folder.launches()))
    return next((log for log in said if log is not None), None)


def _noted(folder: RunFolder, ranks: int) -> Iterator[dict[str, Any]]:
    """memory-<r>.json of every launch and rank that left one."""
    for launch in folder.launches():
        for rank in range(ranks):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads(launch.memory(rank).read_text(encoding="utf-8"))
                if isinstance(record, dict):
                    yield record


def _device_clock_bound_ns(folder: RunFolder, plan: Plan) -> int | None:
    """Of the rank whose anchors were worst; None where nothing was noted."""
    bounds = [record.get("device_clock_bound_ns") for record in _noted(folder, plan.ranks)]
    return max((bound for bound in bounds if isinstance(bound, int)), default=None)


def _memory(folder: RunFolder, world_size: int) -> Memory:
    """What the rank that held most held, over all launches; None where nothing was noted."""
    found: dict[str, int] = {}
    for record in _noted(folder, world_size):
        with contextlib.suppress(AttributeError):
            for name, size in record.get("world_sizes", {}).get(str(world_size), {}).items():
                if isinstance(size, int):
                    found[name] = max(size, found.get(name, 0))
    return Memory(peak_bytes=found.get("peak_bytes"), communicators_bytes=found.get("communicators_bytes"))


def _environment(folder: RunFolder) -> dict[str, Any]:
    """What rank 0 of the last launch ran on; empty where that is gone."""
    for launch in reversed(folder.launches()):
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(launch.env(0).read_text(encoding="utf-8")))
    return {}


def _outcomes(folder: RunFolder) -> tuple[Outcome, ...]:
    """How the cases stand, later launches last."""
    found: list[Outcome] = []
    for launch in folder.launches():
        with contextlib.suppress(InputError):
            found += read_json(launch.cases, Outcomes, CASES_SCHEMA).outcomes
    return tuple(found)


def _status(folder: RunFolder) -> Status | None:
    """status.json; None where it is missing or damaged, which costs no number."""
    with contextlib.suppress(ScalingError):
        return read_json(folder.status, Status, STATUS_SCHEMA)
    return None
