"""One file a verb: what it takes from the command line, and the stages it puts together.

Each has `main(arguments)` and returns the exit status. Imports are made where they are used.
"""

from __future__ import annotations

USAGE: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("run [overrides]", "plan, measure, analyse, report, here"),
        ("run -m topology=a,b", "one run per combination, then a comparison of them"),
    ),
    "plan": (("plan [overrides] [--json]", "what would run, for how long, with which commands"),),
    "analyze": (("analyze RUN [--json]", "rebuild everything derived from the rank files"),),
    "compare": (
        (
            "compare RUN RUN... [--json] [--fail-below RATIO]",
            "the runs against the first: ratio, and which part differs",
        ),
    ),
    "trace": (("trace PATH... [--json] [--hta]", "the same decomposition from existing profiler traces"),),
    "import": (
        ("import KIND FILE [--name NAME]", "nccl-tests, topo or nccl-xml: a machine to conf/topology"),
    ),
    "report": (("report RUN [--open]", "the report of a run: print it, say where the page is"),),
    "sync": (("sync RUN", "upload a run's offline W&B runs"),),
}
"""Verb -> (how to call it, what it does), in the order of a user's work. A verb's file bears its name."""

_WIDTH = 28


def lines(verb: str) -> str:
    """The lines of the help that are about one verb."""
    found = []
    for call, what in USAGE[verb]:
        gap = "\n" + " " * (_WIDTH + 2) if len(call) > _WIDTH else " " * (_WIDTH - len(call))
        found.append(f"  {call}{gap} {what}")
    return "\n".join(found)
