"""What NCCL Inspector wrote beside a training.

`inspector` reads its records, `by_size` makes bandwidth and skew of their durations, `inspected` says
what they come to.
"""
