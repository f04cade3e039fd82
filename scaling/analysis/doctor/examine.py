"""Apply the doctor's rules to what the ranks and hosts of a checkup wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from scaling.analysis.decompose.roofline import roofline
from scaling.analysis.doctor import devices, differences, habits, parity, preflight
from scaling.analysis.network import links
from scaling.analysis.results import Measured, RooflineResult, RunInfo
from scaling.analysis.results.doctor import (
    ERROR,
    SCHEMA,
    SEVERITIES,
    Diagnosis,
    PairBandwidth,
    ParityTable,
    PhasePeak,
    Problem,
)
from scaling.analysis.statistics.rounds import median
from scaling.hardware.telemetry import HostRecord
from scaling.records import checkup
from scaling.records.checkup import RankCheck, RankFacts
from scaling.records.launch import Launch
from scaling.settings.plan import Plan

DONE = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a checkup's launch left on disk."""

    checks: tuple[RankCheck, ...]
    hosts: dict[int, HostRecord]


def collect(launch: Launch) -> Evidence:
    """Read one launch; ranks and hosts that left nothing are not in it."""
    return Evidence(checks=launch.checks, hosts={host.host: host for host in launch.hosts()})


def examine(
    evidence: Evidence,
    plan: Plan,
    run: RunInfo,
    *,
    error: str | None = None,
    other: parity.ParityFile | None = None,
    file: str | None = None,
) -> Diagnosis:
    """Apply all rules. `error`: how the launch failed, where it did; `other`: the machine of a parity file."""
    checks = {c.rank: c for c in evidence.checks}
    facts = {rank: c.facts for rank, c in checks.items() if c.facts}
    facts = {rank: _with_driver(flat, _gpu(checks[rank], evidence)) for rank, flat in facts.items()}
    distinct = differences.differences(facts)
    pairs = _pairs(evidence.checks)
    lines = {rank: _roofline(c, run.device) for rank, c in checks.items()}
    records = {rank: c.parity for rank, c in checks.items() if c.parity}
    device_of = {rank: device_name(c) for rank, c in checks.items()}
    problems = (
        *_unfinished(checks, plan, error),
        *differences.problems(distinct),
        *(p for h in evidence.hosts.values() for p in devices.problems(h, _ranks_of(h, evidence))),
        *(
            p
            for c in evidence.checks
            if c.facts
            for p in devices.host_problems(c, evidence.hosts.get(c.host), _gpu(c, evidence))
        ),
        *devices.pair_problems(pairs),
        *(p for c in evidence.checks for p in habits.problems(c, lines[c.rank], run.device)),
        *habits.slow_products(evidence.checks),
        *parity.problems(records, device_of, distinct, other, facts),
        *parity.left_out(evidence.checks),
    )
    rows = tuple(parity.table(records, device_of, other))
    return Diagnosis(
        schema=SCHEMA,
        run=run,
        ranks=tuple(
            RankFacts(rank=c.rank, host=c.host, stage=c.stage, facts=c.facts) for c in evidence.checks
        ),
        differences=distinct,
        problems=merged(problems, len(checks)),
        pairs=pairs,
        roofline=_slowest(lines.values()),
        parity=None
        if not rows
        else ParityTable(
            steps=len(next(iter(records.values()))[0].steps), batch=parity_batch(plan), table=rows, file=file
        ),
        memory=_memory(evidence.checks),
        others=_others(checks, plan) if all(len(r) == 1 for r in preflight.by_device(facts)) else (),
    )


def machine(evidence: Evidence, identity: str) -> parity.ParityFile | None:
    """What a parity file keeps: the results that most ranks agree on, and one such rank's facts; None without fp32."""
    whole = (c for c in evidence.checks if c.stage == DONE)
    records = {c.rank: c for c in whole if any(r.precision == "fp32" for r in c.parity)}
    if not records:
        return None
    usual, _ = parity.groups_of({r: c.parity for r, c in records.items()}, "fp32")[0]
    check = records[usual[0]]
    return parity.ParityFile(
        schema=parity.FILE_SCHEMA,
        model=identity,
        hostname=str(check.facts.get("hostname")),
        device=device_name(check),
        facts=check.facts,
        parity=check.parity,
    )


def identity(plan: Plan) -> str:
    """What must be equal for two machines' numbers to be comparable."""
    model = plan.spec.model
    args = ", ".join(f"{k}={v}" for k, v in sorted(model.args.items()))
    return f"{model.target}({args}), batch {parity_batch(plan)}, seed {plan.spec.seed}"


PARITY_BATCH_MAX = 8
"""The limit in scaling/worker/checks/parity.py, which imports torch."""


def parity_batch(plan: Plan) -> int:
    """Samples in a parity step."""
    return min(PARITY_BATCH_MAX, max(t.batch for t in plan.trials))


def device_name(check: RankCheck) -> str:
    """The device that computes on a rank."""
    return str(check.facts.get("device_name") or check.facts.get("cpu") or "unknown")


def merged(problems: Sequence[Problem], ranks: int) -> tuple[Problem, ...]:
    """Errors first; a problem that several ranks share is listed once."""
    by_text: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        by_text.setdefault((problem.severity, problem.what, problem.remedy), []).append(problem)
    listed = []
    for (severity, what, remedy), same in by_text.items():
        whose = sorted({p.rank for p in same if p.rank is not None})
        where = "" if len(whose) in (0, ranks) else f" ({differences.ranks_text(whose)})"
        shared = Problem(what=f"{what}{where}", rank=None, remedy=remedy, severity=severity)
        listed.append(shared if len(same) > 1 else same[0])
    return tuple(sorted(listed, key=lambda p: SEVERITIES.index(p.severity)))


def _unfinished(checks: dict[int, RankCheck], plan: Plan, error: str | None) -> Iterator[Problem]:
    ranks = [r for r in range(plan.ranks) if r not in checks or checks[r].stage != DONE]
    if error and ranks:
        yield Problem(what=error, rank=None, remedy="read the logs in the run folder", severity=ERROR)
    for rank in ranks:
        what = f"came as far as {checks[rank].stage}" if rank in checks else "left no records"
        yield Problem(what=what, rank=rank, remedy="read its log in the run folder", severity=ERROR)


def _gpu(check: RankCheck, evidence: Evidence) -> dict[str, object] | None:
    host = evidence.hosts.get(check.host)
    index = devices.index_of(host.gpus, check.facts) if host else None
    return None if host is None or index is None else host.gpus[index]


def _ranks_of(host: HostRecord, evidence: Evidence) -> dict[int, int]:
    """NVML index -> rank, on one host; the lowest of ranks that share a device."""
    facts = {c.rank: c.facts for c in evidence.checks if c.host == host.host}
    return {index: rank for rank, index in reversed(devices.indices(host, facts).items())}


def _with_driver(facts: dict[str, object], gpu: dict[str, object] | None) -> dict[str, object]:
    """Add what NVML knows: in containers /proc may not show the driver."""
    if gpu is None:
        return facts
    return {**facts, "driver": facts.get("driver") or gpu.get("driver"), "vbios": gpu.get("vbios")}


def _pairs(checks: Sequence[RankCheck]) -> tuple[PairBandwidth, ...]:
    """Each pair once, with the shorter of the two ends' times, which holds no wait for the other end."""
    host_of = {c.rank: c.host for c in checks}
    ends: dict[tuple[int, int], list[checkup.Pair]] = {}
    for check in checks:
        for pair in check.pairs:
            ends.setdefault((min(check.rank, pair.peer), max(check.rank, pair.peer)), []).append(pair)
    return tuple(
        PairBandwidth(
            first=first,
            second=second,
            same_host=host_of.get(first) == host_of.get(second),
            peer_access=next((p.peer_access for p in both if p.peer_access is not None), None),
            bytes=both[0].bytes,
            bandwidth_gbit_s=Measured(8 * both[0].bytes / min(p.duration_ns for p in both)),
        )
        for (first, second), both in sorted(ends.items())
    )


def _others(checks: dict[int, RankCheck], plan: Plan) -> tuple[str, ...]:
    """What collectives reach on others' machines like this one; the pairs here are no measurement of them."""
    names, hosts = set(map(device_name, checks.values())), {c.host for c in checks.values()}
    if len(names) != 1:
        return ()
    return links.expected(names.pop(), plan.ranks, len(hosts), links.cards_of(plan.spec))


def _roofline(check: RankCheck, device: str) -> RooflineResult | None:
    step = median(check.times.step_ns) if check.times else None
    if check.work is None or check.times is None or step is None:
        return None
    return roofline(
        check.ceilings,
        check.work,
        step,
        rank=check.rank,
        device=f"{device}: {device_name(check)}",
        device_name=device_name(check),
        input_ms=median(check.times.input_ns),
    )


def _slowest(lines: Iterable[RooflineResult | None]) -> RooflineResult | None:
    """The roofline of the rank that the others would wait for."""
    measured = [line for line in lines if line is not None]
    return max(measured, key=lambda line: line.step_ms.value, default=None)


def _memory(checks: Sequence[RankCheck]) -> tuple[PhasePeak, ...]:
    by_phase: dict[str, list[PhasePeak]] = {}
    for check in checks:
        for memory in check.times.memory if check.times else ():
            peak = PhasePeak(rank=check.rank, **asdict(memory))
            by_phase.setdefault(memory.phase, []).append(peak)
    return tuple(max(p, key=lambda x: (x.device_peak_bytes or 0, x.host_bytes)) for p in by_phase.values())
