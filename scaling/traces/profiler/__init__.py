"""Profiler traces: from files to the results of a run.

Read in this order:

1. `files` finds the files and reads each in a process of its own; `stream` cuts and decodes its JSON into `events`,
   and `read` turns them into arrays (`columns`). `signs` says what an event is.
2. `decompose` splits the steps of one rank into compute, communication and gaps, with sets of time (`spans`).
3. `jobs` groups the files by world size, `match` matches collectives over ranks, `table` puts all ranks' steps
   into one table.
4. `summary` makes the results of that, with `traffic` (bandwidth, kernels slowed by communication), `late` (the
   straggler), `verdicts`, `drawn` (timelines), `planned` (a plan that describes the run) and `hta` (the tables of
   HolisticTraceAnalysis).
"""
