"""Named baselines: runs kept to hold later ones against, found again by machine and model.

    runs/baselines/NAME/<run id>/     plan.json config.yaml analysis.json launches/0/env-0.json baseline.json

Each is a run folder without the ranks' records. All of them stay; the one kept last is the baseline.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import InputError, ScalingError, while_reading
from scaling.reading import read_text
from scaling.records.files import read_json, remove, write_json, write_text
from scaling.records.launch import Launches
from scaling.records.paths import RunFolder
from scaling.settings.bounds import Named
from scaling.settings.environment import MACHINE
from scaling.settings.plan import SCHEMA as PLAN_SCHEMA
from scaling.settings.plan import Plan

SCHEMA = 1
ROOT = Path("runs") / "baselines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """baseline.json."""

    schema: int
    run: str
    kept: str
    machine: dict[str, str]
    work: dict[str, str]
    """Model and what it was asked to do."""


def check_name(name: str) -> str:
    """Return the name; InputError unless it can be a folder's."""
    if re.fullmatch(Named.PATTERN, name, re.ASCII) is None:
        raise InputError(f"--baseline {name}: name it with letters, digits, dots and dashes, such as main")
    return name


def keep(name: str, folder: RunFolder, plan: Plan, root: Path = ROOT) -> RunFolder:
    """Copy what a later comparison needs from an analysed run, which is the baseline from now on.

    InputError where something that was not kept by `keep` is in the way: nothing else is ever removed.
    """
    parent = root / check_name(name)
    target = RunFolder(parent / plan.id)  # a plan's id is a name (settings.bounds.Named)
    if target.path.exists() and not target.baseline.is_file():
        raise InputError(f"{target.path}: is no kept baseline and would be replaced; move it away")
    part = RunFolder(parent / f".{plan.id}.part")
    remove(parent, part.path.name)
    part.launch(0).path.mkdir(parents=True)
    write_json(part.plan, plan)
    copies = [(folder.analysis, part.analysis), (folder.config, part.config)]
    launches = Launches(folder, plan)
    if launches.described is not None:
        copies.append((launches.described.folder.env(0), part.launch(0).env(0)))
    for source, copy in copies:
        if source.is_file() and not source.is_symlink():  # it may lead out of the run
            with while_reading(source, "a file as `scaling` writes it is kept"):
                text = read_text(source)
            write_text(copy, text)
    now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="microseconds")
    machine, work = _machine(launches), _work(plan)
    kept = Baseline(schema=SCHEMA, run=str(folder.path), kept=now, machine=machine, work=work)
    write_json(part.baseline, kept)
    remove(parent, plan.id)
    part.path.rename(target.path)
    return target


def find(name: str, folder: RunFolder, plan: Plan, root: Path = ROOT) -> RunFolder | None:
    """The baseline kept last for this run's machine and work; None where there is none yet."""
    machine, work = _machine(Launches(folder, plan)), _work(plan)
    matching = [(kept, at) for kept, at in _all(name, root) if (kept.machine, kept.work) == (machine, work)]
    return max(matching, key=lambda pair: pair[0].kept)[1] if matching else None


def missing(name: str, folder: RunFolder, plan: Plan, root: Path = ROOT) -> InputError:
    """The error where there is no baseline: it says which ones there are, and how to keep one."""
    others = sorted({f"{kept.work['model']} on {kept.work['topology']}" for kept, _ in _all(name, root)})
    elsewhere = f"; there is {', '.join(others)}, on another machine or with other settings" if others else ""
    return InputError(
        f"--baseline {name}: none is kept in {root / name} for {plan.spec.model.name} on "
        f"{plan.spec.topology.name}{elsewhere}; keep this run: scaling compare {folder.path} --baseline {name} --keep"
    )


def _all(name: str, root: Path) -> list[tuple[Baseline, RunFolder]]:
    baselines = []
    for path in sorted((root / check_name(name)).glob("[!.]*/baseline.json")):
        at = RunFolder(path.parent)
        try:
            baselines.append((read_json(path, Baseline, SCHEMA), at))
            read_json(at.plan, Plan, PLAN_SCHEMA)
        except ScalingError as error:
            raise InputError(f"--baseline {name}: {error}; or remove {path.parent}") from error
    return baselines


def _machine(launches: Launches) -> dict[str, str]:
    facts = launches.environment.facts if launches.environment else {}
    return {key: str(facts[key]) for key in MACHINE if facts.get(key) is not None}


def _work(plan: Plan) -> dict[str, str]:
    spec = plan.spec
    key, batch = spec.batch_setting
    named = {
        "model": spec.model.name,
        "args": json.dumps(spec.model.args, sort_keys=True),
        "topology": spec.topology.name,
        "placement": spec.topology.placement,
        "precision": spec.precision,
        "task": spec.task,
        "mode": spec.mode,
        key: batch,
        "accumulation_steps": spec.accumulation_steps,
    }
    return {key: str(value) for key, value in named.items()}
