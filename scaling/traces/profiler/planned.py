"""A plan that describes the traced run, for reports and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaling.spec.plan import TRACE, Plan
from scaling.spec.topology import BACKEND_OF, CPU, GPU, Topology
from scaling.traces.described import described
from scaling.traces.profiler.files import RankTrace
from scaling.traces.profiler.jobs import TracedRanks


def trace_plan(made: Sequence[TracedRanks], batch: int | None, name: str, found: Sequence[RankTrace]) -> Plan:
    """A plan with the model's name, the topology and the world sizes, as far as the traces show them."""
    files = [f for job in made for f in job.ranks.values()]
    hosts = max(len({f.host for f in job.ranks.values() if f.host}) or 1 for job in made)
    largest = max(job.world_size for job in made)
    devices = Counter(f.device_name for f in files if f.device_name)
    backends = Counter(f.backend for f in files if f.backend)
    device = GPU if any(f.parts.device == "gpu" for f in files) else CPU
    used = GPU if any(f.unseen for f in files) else device
    return described(
        TRACE,
        (str(f.path) for f in found),
        model=name,
        topology=Topology(
            name=devices.most_common(1)[0][0] if devices else "trace",
            kind="local",
            hosts=hosts,
            ranks_per_host=-(-largest // hosts),
            device=device,
            backend=backends.most_common(1)[0][0] if backends else BACKEND_OF[used],
            note="from profiler traces" + ("" if batch else "; the traces do not hold the samples of a step"),
        ),
        world_sizes=tuple(job.world_size for job in made),
        batch_per_rank=batch or 0,
        global_batch=(batch or 0) * largest,
        steps=max(len(f.parts.labels) for f in files),
    )
