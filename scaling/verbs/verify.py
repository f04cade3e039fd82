"""`scaling verify`: measure the remedy that a run's verdict proposes, beside the settings as they are."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator

import numpy as np
from rich.console import Console

from scaling import codec
from scaling.analysis import verify
from scaling.analysis.quantities import read_trial
from scaling.analysis.results import Analysis, Measured, Remedy, Verdict
from scaling.collect import collect
from scaling.config import again
from scaling.errors import InputError, ScalingError
from scaling.plan import Plan
from scaling.rebuild import read_analysis, read_plan
from scaling.records import PLAIN
from scaling.report.proof import print_verification
from scaling.report.progress import watching
from scaling.run import Job, check_folder, create, measure, plan_request
from scaling.spec import Spec
from scaling.store import RunFolder, write_json
from scaling.verbs.arguments import parse

WITHIN_A_LAUNCH = ("ddp", "accumulation_steps", "batch_per_rank", "global_batch")
"""Fields of a spec that two wrappers of one process can differ in."""
PAIRS = 4
"""Of alternating launches, where it takes launches."""

Gains = tuple[Measured | None, Measured | None]


def main(arguments: list[str]) -> int:
    """0 when the remedy held or nothing can be told apart, 1 when it did not hold, 3 when interrupted."""
    paths, options = parse("verify", arguments, {"--json": False, "--try": True}, least=1, most=1)
    folder = RunFolder(paths[0]).require()
    plan, analysis = read_plan(folder), read_analysis(folder)
    cause, remedy = _remedy(analysis, options.get("--try"))
    text = folder.config.read_text(encoding="utf-8")
    size = [f"world_sizes=[{cause.world_size}]", "repeats=1"]
    now = again(text, size)
    then = again(text, [*size, *remedy.overrides.split()])
    parent = RunFolder(_free(folder))
    jobs = _jobs(now, then, parent)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gain, same = _interleaved(jobs[0]) if len(jobs) == 1 else _alternating(jobs)
    how = verify.INTERLEAVED if len(jobs) == 1 else verify.ALTERNATING
    found = verify.judge(plan, cause, remedy, gain, same, how)
    write_json(parent.path / "verification.json", found)
    if options["--json"]:
        print(json.dumps(codec.encode(found), indent=1))
    else:
        print_verification(Console(), found)
    return int(found.verdict == "not_held")
