"""Say which rounds have details where the plan gave them to some rounds only. Pure."""

from __future__ import annotations

import polars as pl

from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.sample import said
from scaling.spec.schedule import PLAIN


def warnings(tables: Tables, plan: Plan) -> tuple[str, ...]:
    """A line for each launch of which only some measured rounds have details."""
    of = {file.launch: file.detailed for file in tables.ranks if file.detailed}
    lines = []
    for launch, detailed in sorted(of.items()):
        plain = tables.blocks.filter((pl.col("launch") == launch) & (pl.col("arm") == PLAIN))
        numbers = set(in_memory(plain.select("round").unique())["round"])
        if numbers - detailed:
            where = f"launch {launch}: " if len(of) > 1 else ""
            lines.append(f"{where}{said(plan, detailed, max(numbers) + 1)}")
    return tuple(lines)
