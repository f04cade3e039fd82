"""Slurm: the job, its queue, and launches inside an allocation."""
