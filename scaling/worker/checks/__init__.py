"""Checks of a rank, its device, its model's step and its links."""
