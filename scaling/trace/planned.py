"""A plan for what was not planned here, so that reports and comparisons know what the numbers hold for."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Sequence

from scaling import __version__
from scaling.fabric import Topology
from scaling.plan import Plan, make_plan
from scaling.spec import Measure, Model, Spec
from scaling.trace.files import RankTrace
from scaling.trace.jobs import Job


def trace_plan(made: Sequence[Job], batch: int | None, name: str, found: Sequence[RankTrace]) -> Plan:
    """What the report and comparisons need to know of a run that was not planned here."""
    files = [f for job in made for f in job.ranks.values()]
    hosts = max(len({f.host for f in job.ranks.values() if f.host}) or 1 for job in made)
    largest = max(job.world_size for job in made)
    devices = Counter(f.device_name for f in files if f.device_name)
    backends = Counter(f.backend for f in files if f.backend)
    device = "cuda" if any(f.parts.device == "gpu" for f in files) else "cpu"
    begun = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    salt = hashlib.sha256("".join(str(f.path) for f in found).encode()).hexdigest()[:8]
    spec = Spec(
        model=Model(name=name, target="trace", args={} if batch is None else {"batch": batch}),
        topology=Topology(
            name=devices.most_common(1)[0][0] if devices else "trace",
            kind="trace",
            hosts=hosts,
            ranks_per_host=-(-largest // hosts),
            device=device,
            backend=backends.most_common(1)[0][0] if backends else ("nccl" if device == "cuda" else "gloo"),
            note="from profiler traces" + ("" if batch else "; samples a step are not in a trace"),
        ),
        world_sizes=tuple(job.world_size for job in made),
        mode="weak",
        batch_per_rank=batch or 0,
        global_batch=(batch or 0) * largest,
        precision="as traced",
        measure=Measure(
            name="trace",
            rounds_min=1,
            rounds_max=1,
            steps=max(len(f.parts.labels) for f in files),
            lead_in=0,
            warmup_max=0,
            target_half_width=None,
            budget_s=0.0,
            fabric_bytes_max=0,
            step_timeout_s=0.0,
        ),
        launcher="trace",
    )
    return make_plan(
        spec,
        run_id=f"{begun:%Y%m%d-%H%M%S}-{salt}",
        created=begun.isoformat(timespec="seconds"),
        version=__version__,
    )
