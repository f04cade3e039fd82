"""`scaling predict` of sharded strategies: torch lists what is sent, the run says how long it takes."""

from __future__ import annotations

import dataclasses

from scaling.analysis.network.placed import HOSTS_OWN
from scaling.analysis.predict.mesh_links import Question
from scaling.analysis.predict.mesh_model import Listings
from scaling.analysis.predict.meshes import mesh_predictions
from scaling.analysis.predict.units import unit_sources
from scaling.analysis.results import Analysis, Prediction
from scaling.launchers.listing import listing
from scaling.records.tables import Tables
from scaling.spec.listing import Listed, Listing
from scaling.spec.parallel import Fsdp, Mesh, Parallel
from scaling.spec.plan import Plan
from scaling.spec.run import WhatIf


def predict_meshes(tables: Tables, plan: Plan, analysis: Analysis, asked: WhatIf) -> Prediction:
    """The prediction. `plan`: with all strategies that were measured side by side."""
    sources = unit_sources(tables, plan, analysis)
    return mesh_predictions(sources, plan, analysis, asked, listings(plan, asked.fsdp))


def listings(plan: Plan, fsdp: Fsdp | None = None) -> Listings:
    """Lists of the run's program, each made once. `fsdp`: settings of meshes and topologies that were not run."""
    known: dict[tuple[Parallel, Mesh, bool, bool, int], Listed] = {}
    ran = [spec.parallel for spec in plan.spec.strategies]

    def listed(question: Question, samples: int) -> Listed:
        parallel, topology = question.parallel, question.topology
        host, own = topology.backend in HOSTS_OWN, parallel in ran and topology == plan.spec.topology
        key = (parallel, question.mesh, host, own, samples if parallel.divided else 0)
        if key not in known:
            settings = plan.spec.fsdp if own or fsdp is None else fsdp
            spec = dataclasses.replace(plan.spec.strategies[0], parallel=parallel, fsdp=settings)
            known[key] = listing(Listing(spec=spec, mesh=question.mesh, host=host, samples=samples))
        return known[key]

    return listed
