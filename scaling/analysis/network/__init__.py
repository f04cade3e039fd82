"""The link: one channel model, curves of the size sweep, bus factors, ring times, NCCL's log.

In: fabric tables, messages, NCCL's log files.
Out: `FabricLevel`, `NcclLog`, step periods and transfer times for `decompose` and `predict`.
"""
