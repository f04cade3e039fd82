"""The loss waterfall: 1 - efficiency, split by cause (docs/method.md, "The loss waterfall")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaling.analysis.network.curve import AlphaBeta
from scaling.analysis.quality import clocks
from scaling.analysis.results import Loss
from scaling.analysis.statistics.rounds import Floats, Means, Rounds
from scaling.spec.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE

Link = Callable[[Means], AlphaBeta]
"""The fitted link of this world size, resampled with the same rounds."""


def share_of_wait(m: Means, exposed: Floats) -> Floats:
    """A wait in the detailed steps, ns, as a share of the step."""
    # The detailed probe's own cost stretches backward, which hides more communication than in a normal step. Only the
    # shares of the wait are taken from it; the wait itself is the light probe's.
    wait = m["detailed.exposed"]
    share = np.divide(exposed, wait, out=np.zeros_like(wait), where=wait > 0)
    result: Floats = share * m[f"{PROBE}.exposed"] / m[PROBE]
    return result


def loss(
    rounds: Rounds,
    n: int,
    ratio: Callable[[Means], Floats],
    link: Link | None,
    *,
    strong: bool,
    size: tuple[int, ...],
    partly: bool,
) -> Loss | None:
    """1 - E by cause, as section "The loss waterfall" of docs/method.md derives it.

    `partly`: return the known terms even where the efficiency is not known; input is then its whole phase.
    """
    if n == 1:
        return None

    def grown(m: Means, arm: str, base: str, *phases: str) -> Floats:
        result: Floats = sum((m[f"{arm}.{p}"] - m[f"{base}.{p}"] for p in phases), np.zeros(1))
        return result

    side = ("input", "host")

    def probe(m: Means) -> Floats:
        """Factor from the light probe's ns to shares of the plain step, without the probe's own cost."""
        return 1 / m[PROBE]

    def linked(m: Means) -> Floats:
        return share_of_wait(m, m["link_exposed"])

    def latency_share(m: Means) -> Floats:
        assert link is not None
        fitted = link(m)
        fixed = 2 * (n - 1) * fitted.alpha_ns * len(size)
        moved = 2 * (n - 1) / n * fitted.beta_ns * sum(size)
        result: Floats = fixed / (fixed + moved)
        return result

    def enqueuing(m: Means) -> Floats:
        """Collectives that wait for the host."""
        return share_of_wait(m, m["bucket_enqueue"]) if "bucket_enqueue" in rounds else np.zeros(1)

    terms: dict[str, Callable[[Means], Floats]] = {
        "neighbours": lambda m: (m[BARE_ALL] - m[BARE_ONE] - grown(m, BARE_ALL, BARE_ONE, *side)) / m[PLAIN],
        "strategy_overhead": lambda m: (
            (m[DDP_SOLO] - m[BARE_ALL] - grown(m, DDP_SOLO, BARE_ALL, *side)) / m[PLAIN]
        ),
        "straggler": lambda m: (m["sim"] - m["sim_typical"]) / m["detailed"],
        "overlap": lambda m: grown(m, "typical.probe", DDP_SOLO, "forward", "compute") * probe(m),
        "input": lambda m: grown(m, "typical.probe", BARE_ONE, "input") * probe(m),
        "host": lambda m: grown(m, "typical.probe", BARE_ONE, "host") * probe(m) + enqueuing(m),
    }
    if link is not None:
        terms["link_latency"] = lambda m: linked(m) * latency_share(m)
        terms["link_bandwidth"] = lambda m: linked(m) * (1 - latency_share(m))
    else:
        terms["link_bandwidth"] = linked
    if strong:
        terms["small_batch"] = lambda m: (m[BARE_ONE] - m["whole_batch"] / n) / m[PLAIN]
    if partly and BARE_ONE not in rounds:
        terms["input"] = lambda m: m["typical.probe.input"] * probe(m)
    measured = {name: rounds.measure(term) for name, term in terms.items()}
    known = [terms[name] for name, number in measured.items() if number is not None]
    unexplained = rounds.measure(lambda m: 1 - ratio(m) - sum(term(m) for term in known))
    if unexplained is None and not (partly and known):
        return None
    measured |= {name: rounds.measure(term) for name, term in clocks.taken_out(rounds, terms).items()}
    return Loss(**measured, unexplained=unexplained)
