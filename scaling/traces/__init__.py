"""What other tools wrote: profiler traces, nccl-tests logs, topologies of machines.

In: their files.
Out: the same results as from a run, or a topology for conf/.
"""
