"""What to try where a model is divided into stages: changes of one's own script."""

from __future__ import annotations

from scaling.analysis.results import Point

CAUSES = ("pipeline_bubble", "link_bandwidth", "link_latency")


def by_hand(cause: str, point: Point) -> tuple[str, ...]:
    """The lines for one of CAUSES, the most promising first."""
    found = point.pipeline
    if cause != "pipeline_bubble":
        return (
            "activations and their gradients in bf16 between stages (torch.autocast around the stages): half the bytes",
            "stages that follow one another on one host, as far as it has room for them",
        )
    if found is None:
        return ()
    count = 2 * found.microbatches
    more = f"{found.schedule}(..., n_microbatches={count}): microbatches of half the size, or twice the batch"
    if found.stages_per_rank > 1:
        return (more,)
    return (
        more,
        "ScheduleInterleaved1F1B with several stages a rank; the ranks have to divide the microbatches",
    )
