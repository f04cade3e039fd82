"""A simulated accelerator, "sim", and a c10d back end with NCCL's semantics, "simccl", for tests.

Real training code runs on it unmodified: streams are asynchronous, kernels compute on the CPU, and times are those of
a model. On the virtual clock, which is the default, times are exact and the same on every run. Nothing is built or
registered before `device.install()`.
"""
