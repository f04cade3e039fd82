"""`scaling predict` of a sharded run: torch lists what it would send, the run's own times and links say how long."""

from __future__ import annotations

import dataclasses

from scaling.analysis.predict.meshes import mesh_predictions
from scaling.analysis.predict.units import unit_sources
from scaling.analysis.results import Analysis, Prediction
from scaling.launchers.listing import listing
from scaling.records.tables import Tables
from scaling.spec.listing import Listed, Listing
from scaling.spec.parallel import Mesh, Parallel
from scaling.spec.plan import Plan
from scaling.spec.run import WhatIf
from scaling.spec.topology import Topology

HOSTS_OWN = ("gloo", "mpi")
"""Back ends whose collectives the host waits for."""


def predict_meshes(tables: Tables, plan: Plan, analysis: Analysis, asked: WhatIf) -> Prediction:
    """The prediction. Each mesh is listed once."""
    known: dict[tuple[Parallel, Mesh, bool, bool], Listed] = {}

    def listed(parallel: Parallel, mesh: Mesh, topology: Topology) -> Listed:
        host, own = (
            topology.backend in HOSTS_OWN,
            parallel == plan.spec.parallel and topology == plan.spec.topology,
        )
        key = (parallel, mesh, host, own)
        if key not in known:
            fsdp = plan.spec.fsdp if own or asked.fsdp is None else asked.fsdp
            spec = dataclasses.replace(plan.spec, parallel=parallel, fsdp=fsdp)
            known[key] = listing(Listing(spec=spec, mesh=mesh, host=host))
        return known[key]

    return mesh_predictions(unit_sources(tables, plan, analysis), plan, analysis, asked, listed)
