"""The verbs: each reads its arguments and runs the stages that it needs.

The file of a verb has `main(arguments)`, or a function of the verb's name where several share it; either returns the
exit status. Imports are made where they are used. This module lists every verb and its options; `arguments` parses a
command line by this list.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Option(NamedTuple):
    """An option of a verb. Without `value` it is a flag; otherwise `value` is the name of its value in the help."""

    name: str
    what: str
    value: str = ""


class Verb(NamedTuple):
    """A verb. `calls` are pairs of a command line and its description.

    With `composed`, all other arguments go to Hydra: overrides, and flags such as `-m`, `--cfg job` and `--config-dir`.
    """

    calls: tuple[tuple[str, str], ...]
    options: tuple[Option, ...] = ()
    composed: bool = False
    home: str = ""
    """The verb in whose file it is, as a function of its own name."""


_VERBOSE = "--verbose: print the whole report, not its five first lines (also -v)"
_JSON = "--json: print one JSON document and nothing else"


def _verb(*rows: str, composed: bool = False, home: str = "") -> Verb:
    """A verb from rows `call: what it does` and `--option VALUE: what it does`."""
    calls, options = [], []
    for row in rows:
        call, _, what = row.partition(": ")
        if call.startswith("--"):
            name, _, value = call.partition(" ")
            options.append(Option(name, what, value))
        else:
            calls.append((call, what))
    return Verb(tuple(calls), tuple(options), composed, home)


VERBS: dict[str, Verb] = {
    "run": _verb(
        "run [overrides]: plan, measure, analyse, report, here",
        "run -m topology=a,b: one run for each, then their comparison",
        "run --resume RUN: go on with the trials that are left",
        "--resume RUN: go on with the trials that are left of RUN; takes no overrides",
        _VERBOSE,
        composed=True,
    ),
    "plan": _verb(
        "plan [overrides] [--time]: what would run, for how long, with which commands",
        "--time: time a few steps of the model first, and say how long the run takes",
        _JSON,
        composed=True,
    ),
    "submit": _verb(
        "submit [overrides] [-m]: the same through Slurm: one job a run; --wait follows it",
        "submit --dry-run [overrides]: print the job's script",
        "submit --resume RUN: go on with the trials that are left, in a new job",
        "--dry-run: print the jobs' scripts and submit nothing",
        "--wait: follow the jobs to their end, then print their reports",
        "--resume RUN: submit what is left of RUN; only --wait may be given with it",
        composed=True,
    ),
    "status": _verb("status RUN: the state of a submitted run: its job and each trial"),
    "cancel": _verb("cancel RUN: end a submitted run's job; what it measured stays", home="status"),
    "analyze": _verb(
        "analyze RUN: rebuild everything derived from the raw records",
        _JSON,
        _VERBOSE,
        home="report",
    ),
    "compare": _verb(
        "compare RUN RUN... [--fail-below RATIO] [--into DIR]: each run compared with the first: throughput "
        "ratio, which part differs, what a sample costs",
        "compare RUN --baseline NAME [--keep]: compared with the baseline of this machine and model; --keep "
        "makes it the baseline",
        _JSON,
        "--fail-below RATIO: exit 1 where a run has clearly less than RATIO times the base's throughput, 4 where "
        "that is undecided",
        "--into DIR: write the comparison as page, Markdown, JSON and W&B run; makes the folder if needed",
        "--baseline NAME: the base is the run kept under NAME for this machine and model",
        "--keep: keep the one run as --baseline NAME, unless the gate is not met",
        "--anyway: with --keep: keep it although other programs ran at the same time",
        "--undecided ok: ok: exit 0, not 4, where the intervals do not decide the gate; --keep then keeps the run",
    ),
    "study": _verb(
        "study RUN RUN...: runs of your own script (a Probe) at several world sizes, as one scaling study",
        "study NUMBERS.csv: GPUs and throughput of your own: speedup, efficiency, where it breaks",
        _JSON,
        _VERBOSE,
        "--into DIR: write study.json and study.html; by default into the folder that `scaling launch` made",
    ),
    "launch": _verb(
        "launch [overrides] --world-sizes 1,2,4 SCRIPT [args]: your own script (with a Probe) under torchrun at "
        "each world size, launches in turns; ends in a study",
        "launch --no-probe ... SCRIPT: the same without any line in the script, which is coarser",
        "launch ... -m package.module: a module of a package, as torchrun takes it",
        "--world-sizes LIST: numbers of ranks, such as 1,2,4",
        "--no-probe: open a Probe for a script that has none",
        "--fresh DIR: give each launch an empty working directory below this new one",
        "--time-limit S: end a launch after so many seconds, by default 3600",
        _VERBOSE,
        composed=True,
    ),
    "predict": _verb(
        "predict RUN [overrides]: a run under other settings: links, world sizes, buckets, batch, faster "
        "compute, compressed gradients, without its late rank",
        "predict RUN --simulate [overrides]: the real program on a simulated machine: strategies, meshes, "
        "memory, machines that are not there",
        _JSON,
        "--config-dir DIR: also read your own topologies from DIR/topology",
        "--anyway: predict from a run although other programs ran at the same time",
        "--simulate: run the program itself on a simulated machine (docs/simulate.md)",
    ),
    "verify": _verb(
        "verify RUN: measure the remedy that the verdict proposes",
        _JSON,
        "--try N: the N-th remedy that has overrides, from 1; by default the first",
    ),
    "selftest": _verb(
        "selftest [--full]: inject known faults; print how many are found and how well their cost is measured",
        "--full: also one host's link at a tenth of its rate, and eight cases with real models, drawn by seed=",
        _JSON,
        composed=True,
    ),
    "doctor": _verb(
        "doctor [overrides]: check the machine, its speed and its precision on every rank, with a remedy for "
        "each finding",
        _JSON,
        "--parity FILE: compare with the machine that wrote FILE; writes FILE if it does not exist",
        composed=True,
    ),
    "trace": _verb(
        "trace PATH... [--out DIR]: the same report from existing torch.profiler traces",
        "trace PATH... [--beside LOG]: bandwidth, skew and the slow rank from NCCL Inspector's records, next to "
        "a log of nccl-tests",
        "trace --how: how to get such files from a job that runs without this program",
        _JSON,
        "--beside LOG: a log of nccl-tests of this machine, to compare NCCL Inspector's with",
        "--how: print how to get such files: one line each",
        "--out DIR: the folder to write",
        "--batch N: samples per rank and step, for throughput",
        "--name NAME: the model's name in the report",
        "--wandb: log it to W&B, offline",
        _VERBOSE,
    ),
    "import": _verb(
        "import KIND FILE [--name NAME]: make conf/topology/NAME.yaml from a tool's file; KIND is nccl-tests, "
        "topo or nccl-xml",
        _JSON,
        "--name NAME: name of the topology; by default the file's name",
        "--into DIR: write DIR/topology/NAME.yaml, by default in conf",
    ),
    "report": _verb(
        "report RUN [--open]: print the report of a run and the path of its page",
        "report RUN --figures DIR: write its figures as SVG and PNG",
        "--open: open the page in a browser",
        _VERBOSE,
        "--figures DIR: write every figure of the page as SVG and PNG instead",
    ),
    "sync": _verb("sync RUN: upload a run's offline W&B runs", home="status"),
}
"""Verbs in the order of a user's work; a verb's file has its name."""
REMOVED = {
    ("import", "mlperf"): "removed; MLCommons' package mlperf_logging reads these logs",
    (
        "compare",
        "--reference",
    ): "removed; `scaling compare RUN --baseline NAME` compares with a run of this machine",
    ("trace", "--hta"): "removed; `pip install HolisticTraceAnalysis` has what prints its quantities",
}
REMOVED |= {
    (verb, key): f"removed; {instead}"
    for verb in ("run", "plan", "submit", "selftest", "doctor")
    for key, instead in (
        (
            "tracking.alerts",
            "`scaling compare --fail-below RATIO` in CI is a gate that tells by its exit status",
        ),
        ("tracking.objective", "-m measures every combination that is listed, and compares them"),
    )
}
"""Options and keys that a verb no longer takes, and what to use instead."""

_WIDTH = 28
_LINE = 80


def lines(verb: str) -> str:
    """The lines of the help about one verb."""
    return "\n".join(_entry(call, what) for call, what in VERBS[verb].calls)


def help_of(verb: str) -> str:
    """The help of one verb: its command lines and options."""
    options = [_entry(f"{o.name} {o.value}".rstrip(), o.what) for o in VERBS[verb].options]
    return "\n".join([lines(verb), *(["", "options:", *options] if options else [])])


def _entry(call: str, what: str) -> str:
    indent = "\n" + " " * (_WIDTH + 3)
    gap = indent if len(call) > _WIDTH else " " * (_WIDTH + 1 - len(call))
    return f"  {call}{gap}{indent.join(textwrap.wrap(what, _LINE - _WIDTH - 3))}"
