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
    return mesh_predictions(sources, plan, analysis, asked, listings(plan))


def listings(plan: Plan) -> Listings:
    """Lists of the run's program, each made once."""
    known: dict[tuple[Parallel, Fsdp, Mesh, bool, int], Listed] = {}

    def listed(question: Question, samples: int) -> Listed:
        parallel, fsdp, mesh = question.parallel, question.fsdp, question.mesh
        host = question.topology.backend in HOSTS_OWN
        key = (parallel, fsdp, mesh, host, samples if parallel.divided else 0)
        if key not in known:
            spec = dataclasses.replace(plan.spec.strategies[0], parallel=parallel, fsdp=fsdp)
            known[key] = listing(Listing(spec=spec, mesh=mesh, host=host, samples=samples))
        return known[key]

    return listed
