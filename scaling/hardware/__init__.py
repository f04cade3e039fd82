"""The devices and sensors of a machine, found without torch.

In: /proc, /sys and NVML.
Out: `devices.Machine`, and the samples of a host in telemetry-<host>.jsonl.
"""
