"""Profiler traces: from files to the results of a run.

1. `stream` cuts and decodes a file's JSON, `read` turns its events into arrays (`columns`); `signs` says what one is.
2. `decompose` splits the steps of one rank into compute, communication and gaps, with sets of time.
3. `jobs` groups the files by world size, and `match` matches collectives over ranks.
4. `summary` makes the results of that, with `traffic` (bandwidths, the late rank, kernels slowed by communication).
"""
