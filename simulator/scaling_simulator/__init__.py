"""A simulated accelerator, "sim", and a c10d back end with NCCL's semantics, "simccl".

Real training code runs on it unmodified: streams are asynchronous, kernels compute on the CPU, and times are those of
a model. On the virtual clock, which is the default, times are exact and the same on every run. `load()` registers both
with torch; nothing is built or registered before. `python -m scaling_simulator` builds it ahead of ranks.
"""

from scaling_simulator.build import BuildError, missing
from scaling_simulator.device import load

__all__ = ["BuildError", "load", "missing"]
