"""Rebuild everything that is derived from the rank files: tables, analysis.json, timeline, reports.

All of it can be deleted and rebuilt.
"""

from __future__ import annotations

from scaling.analysis.compare.differences import machines
from scaling.analysis.invariants import within
from scaling.analysis.results import SCHEMA, Analysis
from scaling.analysis.run import Rebuilt, derive
from scaling.records.files import read_json, write_json
from scaling.records.paths import RunFolder, find_run, is_own
from scaling.records.tables import publish_tables
from scaling.report.documents.run import publish


def read_analysis(folder: RunFolder) -> Analysis:
    """analysis.json, rebuilt when it is not there."""
    if not find_run(folder.path).analysis.is_file():
        return rebuild(folder).analysis
    remedy = f"`scaling analyze {folder.path}` makes it again"
    return within(read_json(folder.analysis, Analysis, SCHEMA, remedy=remedy))


def rebuild(folder: RunFolder) -> Rebuilt:
    """Read a run's records and write everything derived from them. ScalingError when no block was measured.

    Nothing is written into another user's folder, or one that cannot be written to.
    """
    rebuilt, tables, launches, records = derive(folder)
    del records  # a large run's trials, which nothing needs any more
    if is_own(folder):
        publish_tables(folder, tables)
        write_json(folder.analysis, rebuilt.analysis)
        facts = machines(launches.facts)
        publish(folder, rebuilt.analysis, rebuilt.plan, rebuilt.timelines, rebuilt.histories, facts)
    return rebuilt
