"""One file a verb: what it takes from the command line, and the stages it puts together.

Each has `main(arguments)` and returns the exit status. Imports are made where they are used.
"""

from __future__ import annotations

import textwrap

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
    "analyze": (("analyze RUN [--json]", "rebuild everything derived from the raw records"),),
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
            "a run under other settings: fabric, world sizes, buckets, batch, compute_scale, gradient_compression, "
            "without_straggler",
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

COMPOSED = ("run", "plan", "submit", "selftest", "doctor")
"""Verbs whose other arguments are Hydra's: overrides, and flags such as `-m`, `--cfg job` and `--config-dir DIR`."""

_JSON = ("", "print one JSON document and nothing else")
OPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "run": {"--resume": ("RUN", "go on with the trials that are left of RUN; stands alone")},
    "plan": {"--json": _JSON},
    "submit": {
        "--dry-run": ("", "print the jobs' scripts and hand in nothing"),
        "--wait": ("", "follow the jobs to their end, then print their reports"),
        "--resume": ("RUN", "hand in what is left of RUN; of the options --wait alone goes with it"),
    },
    "status": {},
    "cancel": {},
    "analyze": {"--json": _JSON},
    "compare": {
        "--json": _JSON,
        "--fail-below": (
            "RATIO",
            "exit 1 where a run has clearly less than RATIO times the base's throughput",
        ),
        "--into": (
            "DIR",
            "write the comparison as page, Markdown, JSON and W&B run; made where it is not there",
        ),
        "--baseline": ("NAME", "the base is what was kept under NAME for this machine and model"),
        "--keep": ("", "keep the one run as --baseline NAME, unless the gate is not met"),
    },
    "predict": {
        "--json": _JSON,
        "--config-dir": ("DIR", "take topologies of one's own from DIR/topology"),
    },
    "verify": {
        "--json": _JSON,
        "--try": ("N", "the N-th remedy that has overrides, from 1; the first unless given"),
    },
    "selftest": {
        "--full": ("", "all faults: also input that is late on either rank, and one host's link at a tenth"),
        "--json": _JSON,
    },
    "doctor": {
        "--json": _JSON,
        "--parity": ("FILE", "compare with the machine that wrote FILE; write it where it is not there"),
    },
    "trace": {
        "--json": _JSON,
        "--hta": ("", "HolisticTraceAnalysis' quantities as well, by its own definitions"),
        "--out": ("DIR", "the folder that is written"),
        "--batch": ("N", "samples a rank and step, for throughput"),
        "--name": ("NAME", "what the model is called in the report"),
        "--wandb": ("", "log it to W&B, offline"),
    },
    "import": {
        "--json": _JSON,
        "--name": ("NAME", "of the topology; the file's own unless given"),
        "--into": ("DIR", "the folder for NAME.yaml; conf/topology unless given"),
    },
    "report": {
        "--open": ("", "open the page in a browser"),
        "--figures": ("DIR", "write every figure of the page as SVG and PNG instead"),
    },
    "sync": {},
}
"""Verb -> option -> (name of its value, empty for a flag; what it does)."""

_WIDTH = 28
_LINE = 80


def lines(verb: str) -> str:
    """The lines of the help that are about one verb."""
    return "\n".join(_entry(call, what) for call, what in USAGE[verb])


def help_of(verb: str) -> str:
    """How to call one verb, and its own options."""
    options = [_entry(f"{name} {value}".rstrip(), what) for name, (value, what) in OPTIONS[verb].items()]
    return "\n".join([lines(verb), *(["", "options:", *options] if options else [])])


def _entry(call: str, what: str) -> str:
    indent = "\n" + " " * (_WIDTH + 3)
    gap = indent if len(call) > _WIDTH else " " * (_WIDTH + 1 - len(call))
    return f"  {call}{gap}{indent.join(textwrap.wrap(what, _LINE - _WIDTH - 3))}"
