"""Tests of the simulated accelerator (simulator/scaling_simulator) with real training code, on ranks of their own."""
