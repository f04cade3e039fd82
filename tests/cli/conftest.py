"""Traces made by hand, for `scaling trace`."""

from support.traces import job, trace

__all__ = ["job", "trace"]
