"""What is to run, frozen. Pure: no I/O, no torch.

In: settings that `config` has checked.
Out: `Spec` (what was asked for), `Plan` (trials), `schedule` (blocks in their order).
"""
