"""The one reader of a run's own documents: its plan, its composed config, and how it stands."""

from __future__ import annotations

import contextlib

from scaling.errors import InputError, ScalingError
from scaling.reading import YAML_BYTES_MAX, RefusedError, read_text
from scaling.records import codec
from scaling.records.access import find_run
from scaling.records.files import read_json
from scaling.records.lines import read_head
from scaling.records.paths import RunFolder
from scaling.records.status import SCHEMA as STATUS_SCHEMA
from scaling.records.status import Status
from scaling.spec.plan import SCHEMA as PLAN_SCHEMA
from scaling.spec.plan import Plan


def read_plan(folder: RunFolder) -> Plan:
    """The plan of a run, or the one that an own loop's records bring along; InputError where there is none."""
    if not find_run(folder.path).plan.is_file():
        found = own_plan(folder)
        if found is None:
            raise InputError(
                f"{folder.path}: there is no plan.json, and no rank file that begins with a plan; "
                "name a folder that `scaling run` or a Probe made"
            )
        return found
    return read_json(folder.plan, Plan, PLAN_SCHEMA)


def own_plan(folder: RunFolder) -> Plan | None:
    """The plan in the heads of an own loop's rank files, from its latest launch; None where none has one."""
    for launch in reversed(folder.launches()):
        for path in sorted(launch.path.glob("rank-*.jsonl")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                head = read_head(path)
                if head.plan is not None and head.plan.get("schema") == PLAN_SCHEMA:
                    return codec.decode(Plan, head.plan)
    return None


def read_config(folder: RunFolder) -> str:
    """The text of a run's config.yaml; InputError where there is none, as beside traces and own loops."""
    if not folder.config.exists() and folder.path.exists():
        raise InputError(
            f"{folder.path}: the records of your own loop (a Probe) or of traces, which have no settings to change; "
            "name a run that `scaling run` made (it has a config.yaml)"
        )
    try:
        return read_text(folder.config, YAML_BYTES_MAX)
    except (OSError, RefusedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{folder.config}: cannot be read ({why}); overrides need it") from error


def read_status(folder: RunFolder) -> Status | None:
    """status.json; None where it is missing or damaged: every number can be made without it."""
    with contextlib.suppress(ScalingError):
        return read_json(folder.status, Status, STATUS_SCHEMA)
    return None
