"""What others have published of how their training scales.

`mllog` reads one MLPerf Training result log, `systems` the description beside it; `series` puts runs of one system at
several sizes together, and `mlperf` makes the results of a run of them. `reference` holds published scaling tables.
"""
