"""One rank. The only room that imports torch; beside it the standard library alone.

In: plan.json and the environment that torchrun sets.
Out: the records of this rank (`records.format`), flushed at the end of each block.
"""
