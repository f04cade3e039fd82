"""Workloads, and where their batches come from."""
