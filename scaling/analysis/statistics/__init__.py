"""Point estimates with intervals.

In: arrays with one value a round of blocks.
Out: `Measured`, by resampling rounds; scaling laws fitted over world sizes.
"""
