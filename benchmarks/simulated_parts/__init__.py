"""The parts of benchmarks/simulated_gpu.py: cases that are drawn, their ranks, what the simulation knows, judging."""
