"""Readers for what other tools wrote: profiler traces, nccl-tests logs, topologies of machines."""
