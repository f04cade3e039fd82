"""A plan that describes the traced run, for reports and comparisons."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Sequence

from scaling.spec.plan import TRACE, Plan, make_plan
from scaling.spec.run import Measure, Model, Spec
from scaling.spec.topology import Topology
from scaling.traces.profiler.files import RankTrace
from scaling.traces.profiler.jobs import TracedRanks
from scaling.version import __version__


def trace_plan(made: Sequence[TracedRanks], batch: int | None, name: str, found: Sequence[RankTrace]) -> Plan:
    """A plan with the model's name, the topology and the world sizes, as far as the traces show them."""
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
            kind="local",
            hosts=hosts,
            ranks_per_host=-(-largest // hosts),
            device=device,
            backend=backends.most_common(1)[0][0] if backends else ("nccl" if device == "cuda" else "gloo"),
            note="from profiler traces" + ("" if batch else "; the traces do not hold the samples of a step"),
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
    )
    return make_plan(
        spec,
        run_id=f"{begun:%Y%m%d-%H%M%S}-{salt}",
        created=begun.isoformat(timespec="seconds"),
        version=__version__,
        source=TRACE,
    )
