"""Traces made by hand, and real files, for all tests of this folder."""

from support.traces import analysed, job, shared, trace

__all__ = ["analysed", "job", "shared", "trace"]
