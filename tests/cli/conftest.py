"""Traces made by hand, for `scaling trace`."""

from support.traces import analysed, job, trace

__all__ = ["analysed", "job", "trace"]
