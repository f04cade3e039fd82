"""What reduces confidence in the numbers: contention, clocks, memory growth, launches that do not count.

In: tables, telemetry samples, status.json.
Out: warnings, the launches that count for each trial, how trials ended.
"""
