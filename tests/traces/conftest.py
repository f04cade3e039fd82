"""Traces made by hand, and real files, for all tests of this folder."""

from support.traces import job, shared, trace

__all__ = ["job", "shared", "trace"]
