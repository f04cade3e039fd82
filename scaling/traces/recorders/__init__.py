"""What recorders beside a training wrote: PyTorch's flight recorder and NCCL Inspector.

`plain_pickle` reads pickles of plain data only. `flight` reads one rank's dump of the flight recorder, `standing`
compares the dumps of all ranks, `hang` says what came of it. `inspector` reads NCCL Inspector's records, `inspected`
says what they come to. `by_size` makes bandwidth and skew of durations for both; `recorded` has their common table.
"""
