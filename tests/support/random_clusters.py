"""Simulated clusters drawn at random: ranks, rates, late ranks, noise and the clocks' errors."""

from __future__ import annotations

import random

from support.simulated_cluster import Bucket, Straggler, Truth

PHASES = ("input", "forward", "host")


def random_truth(seed: int, *, most: int = 64) -> Truth:
    """A cluster of 2 to `most` ranks. The steps of every third have noise of their own, which differs by rank."""
    rng = random.Random(seed)
    ranks = min(most, round(2 ** rng.uniform(1, 6)))
    each = rng.choice([size for size in (1, 2, 4, 8) if ranks % size == 0])
    hosts = ranks // each
    forward = rng.uniform(4e6, 40e6)
    step = 4 * forward
    late = rng.sample(range(ranks), rng.choice([0, 0, 1, 1, 2]) if ranks > 4 else rng.choice([0, 0, 1]))
    sizes = [2 ** rng.randint(16, 23) for _ in range(rng.randint(1, 6))]
    clocks = rng.choice([False, True])
    strong = ranks <= 8 and rng.random() < 0.3
    return Truth(
        world_sizes=(1, ranks) if strong else (ranks,),
        hosts=hosts,
        ranks_per_host=each,
        mode="strong" if strong else "weak",
        batch=64,
        forward_ns=forward,
        backward_ns=2 * forward,
        input_ns=rng.uniform(0.1e6, 3e6),
        host_ns=rng.uniform(0.1e6, 2e6),
        neighbours=rng.uniform(1.0, 1.3),
        overlap=rng.uniform(1.0, 1.15),
        buckets=tuple(Bucket(bytes=size, at=(k + 1) / len(sizes)) for k, size in enumerate(sizes)),
        alpha_ns=rng.uniform(2e3, 100e3),
        beta_ns=10 ** rng.uniform(-1.5, 0.7),
        channels=rng.choice([1, 2]),
        stragglers=tuple(
            Straggler(rank=rank, extra_ns=rng.uniform(0.05, 0.6) * step, phase=rng.choice(PHASES))
            for rank in late
        ),
        block_noise=rng.uniform(0.001, 0.03),
        step_noise=0.0 if seed % 3 else rng.uniform(0.001, 0.05),
        link_noise=rng.uniform(0.001, 0.03),
        drift=rng.uniform(0.0, 0.02),
        skew_ns=rng.uniform(0.0, 100e3),
        clock_offset_ns=tuple(rng.randint(-(10**10), 10**10) if clocks and r else 0 for r in range(ranks)),
        clock_drift_ppm=tuple(rng.uniform(-30, 30) if clocks and r else 0.0 for r in range(ranks)),
        clock_bound_ns=rng.choice([2_000, 20_000, 100_000]),
        rounds=rng.randint(4, 8),
        steps=rng.randint(4, 6),
        lead_in=1,
        fabric_repeats=2,
        seed=seed,
        buffers_ns=rng.choice([0.0, 0.0, rng.uniform(50e3, 3e6)]),
    )
