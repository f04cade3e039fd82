"""Fixtures and groups of all tests, those of simulator/ too: tests/support/plugin.py."""

pytest_plugins = ("support.plugin",)
