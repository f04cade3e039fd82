"""Simulations of the real program: what a worker is asked for, and what its answers mean.

In: a checked `Spec` of a machine that need not be here, and what a run measured, where there is one.
Out: `Simulation`s for the worker; `SimulationResults` of its answers.
"""
