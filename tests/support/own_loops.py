"""Runs of an own loop on disk, without any training: a simulated cluster's records, with the plan in their heads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from support.rank_files import change
from support.simulated_cluster import Truth, simulate

from scaling.records import files
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.settings.plan import OWN_LOOP
from scaling.settings.schedule import PLAIN, PROBE


def own_loop(truth: Truth, path: Path) -> Path:
    """The records of `truth`, which has one world size, as a Probe would have left them."""
    simulate(truth, path)
    folder = RunFolder(path)
    plan = files.encode(dataclasses.replace(read_plan(folder), source=OWN_LOOP))

    def as_probe(lines):
        blocks = {line["id"] for line in lines if line["t"] == "block" and line["arm"] in (PLAIN, PROBE)}
        kept = [
            line
            for line in lines
            if line["t"] not in ("block", "step") or line.get("b", line.get("id")) in blocks
        ]
        kept[0]["plan"] = plan
        kept[-1].update(steps=100, blocks=len(blocks))
        return kept

    for launch in folder.launches():
        for rank in launch.ranks():
            change(launch.rank(rank), as_probe)
    folder.plan.unlink()
    return path
