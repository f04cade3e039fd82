"""A plan that describes what others ran, for reports and comparisons: there are no records behind it."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence

from scaling.spec.plan import Plan, make_plan
from scaling.spec.run import Measure, Model, Spec
from scaling.spec.topology import Topology
from scaling.version import __version__


def described(
    source: str,
    files: Iterable[str],
    *,
    model: str,
    topology: Topology,
    world_sizes: Sequence[int],
    mode: str = "weak",
    batch_per_rank: int = 0,
    global_batch: int = 0,
    steps: int = 1,
    precision: str = "as traced",
) -> Plan:
    """`source`: one of spec.plan.SOURCES; `files` distinguish plans that are made in the same second."""
    begun = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    salt = hashlib.sha256("".join(files).encode("utf-8", "replace")).hexdigest()[:8]
    spec = Spec(
        model=Model(name=model, target=source, args={} if not batch_per_rank else {"batch": batch_per_rank}),
        topology=topology,
        world_sizes=tuple(world_sizes),
        mode=mode,
        batch_per_rank=batch_per_rank,
        global_batch=global_batch,
        precision=precision,
        measure=Measure(
            name=source,
            rounds_min=1,
            rounds_max=1,
            steps=steps,
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
        source=source,
    )
