"""Start a launch, follow it, and explain its end: torchrun here, emulated hosts, Slurm.

In: a `Plan` and the folder of its run.
Out: rank files, status.json, and why a launch ended as it did.
"""
