"""Measure how a DDP training scales, what eats the rest, and how sure that is."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("scaling-harness")
except PackageNotFoundError:  # a plain checkout on PYTHONPATH
    __version__ = "0.1.0.dev0"

__all__ = ["__version__"]
