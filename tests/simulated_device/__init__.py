"""Tests of the simulated accelerator (scaling/worker/simulated) with real training code, on ranks of their own."""
