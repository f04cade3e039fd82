"""Machines, from logs and topologies that other tools wrote."""
