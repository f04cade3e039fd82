"""What a host says of itself while a launch runs: one process a host, started by its first rank.

It is a program of its own (`python -m scaling.telemetry FILE HOST PERIOD_S PARENT_PID`), so that
reading a driver never takes a lock or a core's time from inside a worker.
"""
