"""One file a verb: what it takes from the command line, and the stages it puts together.

Each has `main(arguments)` and returns the exit status. Imports are made where they are used.
"""

from __future__ import annotations

USAGE: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("run [overrides]", "plan, measure, analyse, report, here"),
        ("run -m topology=a,b", "one run per combination, then a comparison of them"),
        ("run --resume RUN", "go on with the trials that are left"),
    ),
    "plan": (("plan [overrides] [--json]", "what would run, for how long, with which commands"),),
    "submit": (
        ("submit [overrides] [-m]", "the same through Slurm: one job a run; --wait follows it"),
        ("submit --dry-run [overrides]", "print the job's script"),
        ("submit --resume RUN", "go on with the trials that are left, in a new job"),
    ),
    "status": (("status RUN", "how a submitted run stands: its job, and trial by trial"),),
    "cancel": (("cancel RUN", "end a submitted run's job; what it measured stays"),),
    "analyze": (("analyze RUN [--json]", "rebuild everything derived from the rank files"),),
    "compare": (
        (
            "compare RUN RUN... [--json] [--fail-below RATIO] [--into DIR] [cost.usd_per_gpu_hour=...]",
            "the runs against the first: ratio, which part differs, what a sample costs",
        ),
        (
            "compare RUN --baseline NAME [--keep]",
            "against the baseline of this machine and model; or keep it as such",
        ),
    ),
    "predict": (
        (
            "predict RUN [overrides] [--json]",
            "a run under other settings: fabric, world sizes, buckets, batch",
        ),
    ),
    "verify": (("verify RUN [--try N] [--json]", "measure the remedy that the verdict proposes"),),
    "selftest": (
        ("selftest [--full] [--json]", "put known faults in, print hit rate and attribution error"),
    ),
    "doctor": (
        (
            "doctor [overrides] [--json] [--parity FILE]",
            "machine, roofline and precision parity on every rank, with a remedy a line",
        ),
    ),
    "trace": (
        (
            "trace PATH... [--json] [--hta] [--out DIR] [--batch N] [--name NAME] [--wandb]",
            "the same decomposition from existing profiler traces; N samples a rank and step",
        ),
    ),
    "import": (
        (
            "import KIND FILE [--json] [--name NAME] [--into DIR]",
            "KIND nccl-tests, topo or nccl-xml: what is known of a machine to conf/topology",
        ),
    ),
    "report": (
        ("report RUN [--open]", "the report of a run: print it, say where the page is"),
        ("report RUN --figures DIR", "its figures as SVG and PNG"),
    ),
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
