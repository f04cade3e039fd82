"""Count how often 95 % intervals hold the truth, on series whose true mean ratio is known.

Two arms in rounds of blocks, as a run makes them: steps inside a block are autocorrelated (AR(1)), blocks
add noise, the machine drifts over the rounds, and arms of a round share the drift. The statistic is the ratio of
the arms' means. Two usual intervals are shown beside the project's: Student's over all steps as if they were
independent, and the percentile bootstrap over rounds.

Bar: coverage of the project's interval between 0.92 and 0.98 at every number of rounds.
"""

from __future__ import annotations

import harness
import numpy as np
from ending import exit_with

from scaling.analysis.statistics.rounds import Rounds, student

TRUTH = 0.8
TRIALS = 1500
STEPS = 8
ROUNDS = (3, 4, 6, 10, 20)
STEP_NOISE, STEP_RHO, BLOCK_NOISE, DRIFT = 0.03, 0.5, 0.02, 0.03
BAR = (0.92, 0.98)


def series(rng: np.random.Generator, rounds: int, mean: float, drift: np.ndarray) -> np.ndarray:
    """Steps of one arm, rounds x STEPS, ms."""
    noise = np.empty((rounds, STEPS))
    noise[:, 0] = rng.normal(size=rounds)
    for k in range(1, STEPS):
        noise[:, k] = STEP_RHO * noise[:, k - 1] + (1 - STEP_RHO**2) ** 0.5 * rng.normal(size=rounds)
    block = BLOCK_NOISE * rng.normal(size=(rounds, 1))
    return mean * drift[:, None] * (1 + STEP_NOISE * noise + block)


def intervals(rng: np.random.Generator, rounds: int, seed: int) -> dict[str, tuple[float, float]]:
    drift = 1 + DRIFT * np.cumsum(rng.normal(size=rounds)) / rounds**0.5
    a, b = series(rng, rounds, 40.0, drift), series(rng, rounds, 50.0, drift)
    means = {"a": a.mean(axis=1), "b": b.mean(axis=1)}
    ours = Rounds(means, np.zeros(rounds, dtype=np.int64), seed=seed).ratio(lambda m: m["a"] / m["b"])
    assert ours is not None
    assert ours.low is not None
    assert ours.high is not None
    ratio = a.mean() / b.mean()
    relative = (a.var(ddof=1) / a.mean() ** 2 + b.var(ddof=1) / b.mean() ** 2) / a.size
    half = student(2 * a.size - 2) * ratio * relative**0.5
    picks = rng.integers(rounds, size=(500, rounds))
    draws = means["a"][picks].mean(axis=1) / means["b"][picks].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {
        "rounds, t (ours)": (ours.low, ours.high),
        "rounds, percentile": (float(low), float(high)),
        "steps, t": (ratio - half, ratio + half),
    }


def main() -> int:
    rng = np.random.default_rng(0)
    table: dict[int, dict[str, float]] = {}
    for rounds in ROUNDS:
        hits: dict[str, int] = {}
        for trial in range(TRIALS if rounds < 10 else TRIALS // 2):
            for name, (low, high) in intervals(rng, rounds, trial).items():
                hits[name] = hits.get(name, 0) + (low <= TRUTH <= high)
        trials = TRIALS if rounds < 10 else TRIALS // 2
        table[rounds] = {name: count / trials for name, count in hits.items()}
    names = list(next(iter(table.values())))
    print(f"{'rounds':>6} " + " ".join(f"{name:>20}" for name in names))
    for rounds, row in table.items():
        print(f"{rounds:>6} " + " ".join(f"{row[name]:>20.3f}" for name in names))
    ok = all(BAR[0] <= row["rounds, t (ours)"] <= BAR[1] for row in table.values())
    return harness.result("coverage", ok=ok, coverage=table, bar=BAR)


if __name__ == "__main__":
    exit_with(main)
