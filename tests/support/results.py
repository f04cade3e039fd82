"""Hand-made runs for the renderers: numbers that hang together, and text that tries to break out."""

from __future__ import annotations

from dataclasses import replace

from scaling.analysis.compare.sweep import Member, sweep
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    ArmTimes,
    Bucket,
    CaseComparison,
    Comm,
    Comparison,
    CostComparison,
    CurvePoint,
    Fabric,
    FabricLevel,
    InferenceCase,
    Latency,
    Loss,
    Measured,
    Overhead,
    Point,
    PointComparison,
    Quality,
    Remedy,
    RunInfo,
    SampleCost,
    SettingDifference,
    Span,
    Split,
    StepHistory,
    StepParts,
    Straggler,
    Sweep,
    Timeline,
    TrialStatus,
    Verdict,
)
from scaling.analysis.results.machine import MachineGroup
from scaling.settings.plan import Plan, make_plan
from scaling.settings.run import Inject, Measure, Model, Spec
from scaling.settings.topology import Link, Topology

HOSTILE = "<script>alert('x')</script>"
MIB = 2**20
SECTIONS = [
    "Key figures",
    "Scaling",
    "Where the efficiency goes",
    "What limits it, and what to try",
    "One typical step",
    "Parts of a step",
    "Communication",
    "Steps as they ran",
    "Conditions",
    "Machine and environment",
    "How sure",
]
"""The sections on the page of `good`, with everything that is drawn beside it."""


def about(value: float, half: float, n: int = 12) -> Measured:
    """A number with a symmetric interval."""
    return Measured(value, value - half, value + half, n)


def comm(bytes_per_step: int = 1, **known: object) -> Comm:
    """One message a step, unless other buckets are told; what is not told is not known."""
    unknown = dict.fromkeys(("busbw_gbit_s", "curve_share", "nominal_share", "hidden_share"))
    return Comm(**{"bytes_per_step": bytes_per_step, "buckets": (bucket(bytes_per_step),)} | unknown | known)


def bucket(size_bytes: int, **known: object) -> Bucket:
    return Bucket(bytes=size_bytes, **dict.fromkeys(("ready_ms", "transfer_ms", "skew_ms")) | known)


def bare(run: RunInfo, *points: Point, **known: object) -> Analysis:
    """An analysis of these points, in which nothing else was found."""
    quality = Quality(contended_blocks=0, dropped_samples=0, clock_bound_us=None)
    nothing = dict.fromkeys(("inference", "verdicts", "trials"), ())
    known = nothing | {"fabric": Fabric(), "quality": quality} | known
    return Analysis(schema=SCHEMA, run=run, points=points, **known)


def run_info(**changes: object) -> RunInfo:
    base = RunInfo(
        id="20260302-101500-8f3a",
        model="highmem_cnn",
        topology="emulated_pcie",
        precision="fp32",
        mode="weak",
        task="train",
        backend="gloo",
        device="cpu",
        started="2026-03-02T10:15:00Z",
        duration_s=94.0,
        synthetic=False,
        launches=1,
    )
    return replace(base, **changes)


def emulated(hosts: int, ranks_per_host: int, **changes: object) -> Topology:
    usual = {"name": "emulated", "kind": "emulated", "device": "cpu", "backend": "gloo"}
    return Topology(hosts=hosts, ranks_per_host=ranks_per_host, **usual | changes)


def measure(**changes: object) -> Measure:
    """Settings of a short measurement."""
    usual = {"name": "test", "rounds_min": 3, "rounds_max": 10, "steps": 8, "lead_in": 3, "warmup_max": 30}
    usual |= {"target_half_width": None, "budget_s": 100.0, "fabric_bytes_max": MIB, "step_timeout_s": 60.0}
    return Measure(**usual | changes)


def spec(model: str = "highmem_cnn", *, synthetic: bool = False, inject: Inject | None = None) -> Spec:
    return Spec(
        model=Model(name=model, target="scaling.worker.models.cnn.make", args={}, synthetic=synthetic),
        topology=Topology(
            name="emulated_pcie",
            kind="emulated",
            hosts=4,
            ranks_per_host=1,
            device="cpu",
            backend="gloo",
            link=Link(rate_bit_s=200_000_000, source="shaped"),
            note="emulated link, scaled down: ratios between topologies hold, absolute rates do not",
        ),
        world_sizes=(1, 2, 4),
        mode="weak",
        batch_per_rank=32,
        global_batch=128,
        precision="fp32",
        measure=Measure(
            name="standard",
            rounds_min=6,
            rounds_max=24,
            steps=10,
            lead_in=2,
            warmup_max=20,
            target_half_width=0.02,
            budget_s=300,
            fabric_bytes_max=16 * MIB,
            step_timeout_s=60,
        ),
        launcher="emulated",
        inject=inject or Inject(),
    )


def plan(a_spec: Spec | None = None) -> Plan:
    return make_plan(
        a_spec or spec(), run_id="20260302-101500-8f3a", created="2026-03-02T10:15:00Z", version="0.1"
    )


def one_rank() -> Point:
    return Point(
        world_size=1,
        hosts=1,
        status="done",
        warmup_steps=5,
        step_ms=about(80.3, 0.6),
        samples_per_s=about(398.5, 3.0),
        speedup=Measured(1.0),
        efficiency=Measured(1.0),
        arms_ms=ArmTimes(bare_one=about(80.1, 0.5), plain=about(80.3, 0.6), probe=about(80.5, 0.6)),
        parts_ms=StepParts(
            input=about(1.2, 0.1),
            forward=about(26.1, 0.3),
            backward=about(48.6, 0.4),
            optimizer=about(3.4, 0.1),
            host=about(1.2, 0.2),
        ),
        overhead=Overhead(probe_over_plain=about(1.0025, 0.004), aa_floor=about(0.9995, 0.005)),
    )


def ranks_point(n: int, step: float, transfer: float) -> Point:
    """A point of n ranks whose step is 80 ms of compute, `transfer` ms on the wire and small change."""
    rest = step - transfer - 83.6
    latency = 0.012
    return Point(
        world_size=n,
        hosts=n,
        status="done",
        warmup_steps=6,
        step_ms=about(step, 1.4),
        samples_per_s=about(32e3 * n / step, 2.0),
        speedup=about(80.1 * n / step, 0.02),
        efficiency=about(80.1 / step, 0.012),
        efficiency_loaded=about(81.0 / step, 0.011),
        arms_ms=ArmTimes(
            bare_one=about(80.1, 0.5),
            bare_all=about(81.3, 0.5),
            ddp_solo=about(83.1, 0.7),
            plain=about(step, 1.4),
            probe=about(step + 0.3, 1.5),
        ),
        parts_ms=StepParts(
            input=about(1.2, 0.1),
            forward=about(26.4, 0.3),
            backward=about(50.9, 0.5),
            exposed_transfer=about(transfer, 0.9),
            exposed_skew=about(rest, 0.3),
            optimizer=about(3.6, 0.1),
            host=about(1.5, 0.2),
        ),
        closure=about(1.012, 0.01),
        loss=Loss(
            neighbours=about(1.2 / step, 0.004),
            strategy_overhead=about(1.8 / step, 0.004),
            link_latency=about(latency, 0.002),
            link_bandwidth=about(transfer / step - latency, 0.007),
            overlap=about(1.6 / step, 0.004),
            input=about(0.0004, 0.0009),
            host=about(-0.3 / step, 0.002),
            unexplained=Measured(1 - (80.1 + 4.3 + transfer) / step, -0.004, 0.03, 12),
        ),
        overhead=Overhead(probe_over_plain=about(1.003, 0.004), aa_floor=about(0.9995, 0.005)),
        comm=Comm(
            bytes_per_step=9 * MIB,
            buckets=tuple(
                Bucket(bytes=b, ready_ms=about(r, 0.4), transfer_ms=about(t, 0.5), skew_ms=about(0.4, 0.2))
                for b, r, t in (
                    (MIB, 8.1, transfer * 0.15),
                    (4 * MIB, 24.0, transfer * 0.5),
                    (4 * MIB, 46.5, 18),
                )
            ),
            busbw_gbit_s=about(0.176, 0.003),
            curve_share=about(0.96, 0.02),
            nominal_share=about(0.92, 0.016),
            hidden_share=about(0.37, 0.02),
        ),
    )


def level(n: int) -> FabricLevel:
    alpha_s, bit_s = 120e-6, 0.183e9

    def curve_point(size: int) -> CurvePoint:
        seconds = 2 * (n - 1) * (alpha_s + size * 8 / bit_s / n)
        busbw = size * 8 / seconds * 2 * (n - 1) / n / 1e9
        return CurvePoint(
            collective="all_reduce",
            bytes=size,
            time_us=about(seconds * 1e6, seconds * 4e4),
            algbw_gbit_s=about(size * 8 / seconds / 1e9, 0.002),
            busbw_gbit_s=about(busbw, 0.04 * busbw),
        )

    sizes = tuple(4**k for k in range(5, 13))
    return FabricLevel(
        name="between hosts",
        world_size=n,
        alpha_us=about(120, 6),
        busbw_gbit_s=about(0.183, 0.002),
        nominal_gbit_s=0.1913,
        curve=tuple(curve_point(size) for size in sizes),
    )


def good() -> Analysis:
    points = (one_rank(), ranks_point(2, 121.2, 36.9), ranks_point(4, 139.6, 55.1))
    main = Verdict(
        cause="link_bandwidth",
        world_size=4,
        share=about(0.383, 0.007),
        confidence="high",
        evidence=(
            "exposed transfer is 55.1 ms of a 139.6 ms step",
            "busbw in training is 0.176 Gbit/s, 96 % of the machine's own curve: a slow link, used well",
        ),
        try_=(
            Remedy(
                overrides="ddp.comm_hook=bf16",
                code="model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
                predicted_gain=about(1.19, 0.02),
            ),
            Remedy(overrides="topology=emulated_nvlink", code="", predicted_gain=about(1.6, 0.03)),
        ),
    )
    return Analysis(
        schema=1,
        run=run_info(),
        points=points,
        fabric=Fabric(levels=(level(2), level(4))),
        inference=(),
        verdicts=(main, replace(main, world_size=2, share=about(0.293, 0.007), try_=())),
        quality=Quality(contended_blocks=0, dropped_samples=0, clock_bound_us=21.0),
        trials=tuple(TrialStatus(world_size=n, status="done") for n in (1, 2, 4)),
    )


def bad() -> Analysis:
    """A failed trial, a straggler, warnings, hostile names, and numbers without intervals."""
    late = ranks_point(2, 160.0, 36.9)
    loss = replace(late.loss, straggler=Measured(0.21, 0.12, 0.24, 4), unexplained=None)
    error = f"RuntimeError: {HOSTILE} \x1b[31mconnection closed by peer\x1b[0m " + "127.0.0.1:29400 " * 6
    return replace(
        good(),
        run=run_info(model=HOSTILE, synthetic=True),
        points=(
            one_rank(),
            replace(
                late,
                status="interrupted",
                loss=loss,
                straggler=Straggler(
                    rank=1, phase="forward", by_itself=True, cost_ms=about(33.6, 4), skew_ms=Measured(31.0)
                ),
                efficiency=Measured(80.1 / 160.0),
            ),
            Point(world_size=4, hosts=4, status="failed"),
        ),
        fabric=Fabric(),
        verdicts=(
            Verdict(
                cause="undecided",
                world_size=2,
                share=None,
                confidence="low",
                evidence=(f"only 4 rounds {HOSTILE}",),
                try_=(Remedy(overrides="measure=thorough", code=""),),
            ),
        ),
        quality=Quality(
            contended_blocks=3,
            dropped_samples=12,
            clock_bound_us=None,
            warnings=("the interval of the efficiency is 7 points wide; run measure=thorough",),
        ),
        trials=(
            TrialStatus(world_size=1, status="done"),
            TrialStatus(world_size=2, status="interrupted"),
            TrialStatus(world_size=4, status="failed", error=error, rank=3),
        ),
    )


def bad_plan() -> Plan:
    return plan(spec(HOSTILE, synthetic=True, inject=Inject(rank=1, compute_ms=33)))


def timeline(n: int, transfer: float = 36.9) -> Timeline:
    """One step a rank: phases, and three buckets of which two overlap."""
    spans: list[Span] = []
    for rank in range(n):
        begin = 0.0
        shift = 0.4 * rank
        for name, length in (
            ("input", 1.2),
            ("forward", 26.4 + shift),
            ("backward", 50.9),
            ("exposed_skew", 0.8),
            ("exposed_transfer", transfer),
            ("optimizer", 3.6),
            ("host", 1.5),
        ):
            spans.append(Span(rank=rank, lane="compute", name=name, begin_ms=begin, end_ms=begin + length))
            begin += length
        end = 79.3 + shift + transfer
        for k, (first, last, size) in enumerate(
            ((38.0, 52.0, MIB), (54.0, end - 18, 4 * MIB), (78.0, end, 4 * MIB))
        ):
            spans.append(
                Span(rank=rank, lane="link", name=f"bucket {k}", begin_ms=first, end_ms=last, bytes=size)
            )
    return Timeline(world_size=n, spans=tuple(spans))


def comparison(*, comparable: bool = True) -> Comparison:
    return Comparison(
        schema=1,
        base=run_info(),
        other=run_info(topology="emulated_nvlink", id="20260302-104100-11c0"),
        comparable=comparable,
        reasons=() if comparable else ("precision differs: fp32, bf16", f"model differs: {HOSTILE}"),
        points=(
            PointComparison(
                world_size=1, ratio=about(1.002, 0.009), distinguishable=False, causes={"compute": None}
            ),
            PointComparison(
                world_size=2,
                ratio=Measured(1.36, 1.33, 1.42, 12),
                distinguishable=True,
                causes={
                    "compute": about(0.2, 0.6),
                    "link_bandwidth": about(-31.0, 1.1),
                    "link_latency": about(-0.2, 0.3),
                    "overlap": about(0.9, 0.6),
                    "clocks": None,
                },
                split=Split(
                    compute=about(1.01, 0.02),
                    fabric=about(1.34, 0.04),
                    left=about(1.0, 0.04),
                    alone=about(1.0, 0.01),
                ),
                cost=CostComparison(
                    base=SampleCost(usd_per_million_samples=about(2.60, 0.02)),
                    other=SampleCost(
                        usd_per_million_samples=about(3.82, 0.05), samples_per_joule=about(1.9, 0.1)
                    ),
                    per_usd=about(0.68, 0.01),
                ),
            ),
            PointComparison(
                world_size=4,
                ratio=about(1.52, 0.03),
                distinguishable=True,
                causes={
                    "compute": about(0.1, 0.6),
                    "link_bandwidth": about(-48.0, 1.3),
                    "overlap": about(1.1, 0.7),
                },
            ),
        ),
        settings=(
            SettingDifference(of="settings", key="topology.link.rate_bit_s", base="1", other=HOSTILE),
            SettingDifference(of="environment", key="torch", base="2.13.0", other=None),
        ),
    )


def other() -> Analysis:
    """The faster of the two compared runs."""
    points = (one_rank(), ranks_point(2, 89.1, 4.9), ranks_point(4, 91.8, 7.1))
    return replace(good(), run=comparison().other, points=points)


def histories(crossed: range = range(0)) -> tuple[StepHistory, ...]:
    """Sixty steps at 4 ranks, every third with the probe; `crossed`: those beside which other programs ran."""
    columns = {
        "time_s": tuple(0.2 * i for i in range(60)),
        "step_ms": tuple(139.6 + (i % 7) - 3 for i in range(60)),
    }
    arms = tuple("probe" if i % 3 == 0 else "plain" for i in range(60))
    contended = tuple(i in crossed for i in range(60))
    return (StepHistory(world_size=4, columns=columns, arm=arms, contended=contended),)


def machines() -> tuple[MachineGroup, ...]:
    """Three hosts alike and one with an older torch."""
    usual = {"cpu": "Imaginary C1", "cores": 8, "threads": 8, "torch": "2.13.0", "python": "3.11.7"}
    variables = (("GLOO_SOCKET_IFNAME", "eth0"),)
    return (
        MachineGroup(hosts=("a", "b", "c"), ranks=(0, 1, 2), environment=variables, **usual),
        MachineGroup(hosts=(HOSTILE,), ranks=(3,), **(usual | {"torch": "2.12.0"})),
    )


def inference(batch: int, **changes: object) -> InferenceCase:
    """A case that was measured, over two ranks in fp32 unless told otherwise."""
    usual = {"world_size": 2, "precision": "fp32", "autocast": False, "compile": False, "status": "done"}
    return InferenceCase(batch=batch, **usual | changes)


def compared_case(ratio: Measured | None, batch: int = 8, **changes: object) -> CaseComparison:
    """A case of inference in bf16 over two ranks; its ratio is told from 1 unless told otherwise."""
    setting = {"precision": "bf16", "autocast": True, "compile": False}
    usual = {"setting": setting, "samples_per_s": (None, None), "distinguishable": True}
    return CaseComparison(world_size=2, batch=batch, ratio=ratio, **usual | changes)


def served() -> Analysis:
    """Inference at several batches and settings, one of them too large."""
    rows = [
        inference(
            batch,
            precision=precision,
            autocast=precision == "bf16",
            latency_ms=Latency(p50=about(2e3 * batch / rate, 0.4), p90=about(2.1e3 * batch / rate, 0.6)),
            samples_per_s=about(rate, rate / 60),
            peak_bytes=(300 + 4 * batch) * MIB,
            knee=knee,
        )
        for precision, batch, rate, knee in (
            ("fp32", 1, 100, False),
            ("fp32", 8, 390, True),
            ("fp32", 32, 400, False),
            ("bf16", 1, 140, False),
            ("bf16", 8, 640, False),
            ("bf16", 32, 910, False),
        )
    ]
    too_large = replace(
        rows[-1], batch=128, status="oom", samples_per_s=None, latency_ms=Latency(), error="out of memory"
    )
    return replace(bare(run_info(task="inference"), inference=(*rows, too_large)), trials=good().trials)


def swept(*runs: Analysis) -> Sweep:
    """Runs as one table; each is of the plan of `good`, under the topology and precision that it says."""

    def member(run: Analysis) -> Member:
        own = replace(spec(), precision=run.run.precision)
        own = replace(own, topology=replace(own.topology, name=run.run.topology))
        return Member(analysis=run, plan=plan(own))

    return sweep([member(run) for run in runs])
