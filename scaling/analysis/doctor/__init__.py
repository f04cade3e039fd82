"""Rules over what a checkup recorded: devices, hosts, differences between ranks, parity, habits of the model.

In: check records, telemetry and environments of a launch.
Out: `Diagnosis` with its `Problem`s; the short check and the labels of every run.
"""
