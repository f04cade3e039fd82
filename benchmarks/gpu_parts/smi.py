"""Read a device with nvidia-smi, and with telemetry just before and after."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_parts import rows
from gpu_parts.rows import Row

ASK_S = 30
MIB = 2**20
_NOT_A_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_MISSING = re.compile(
    r"^\[?(?:N/A|Not Supported|Unknown Error|GPU requires reset|Insufficient Permissions)\]?$"
)
_ON = {"Enabled": 1.0, "Disabled": 0.0}

Facts = Mapping[str, Any]
Value = float | str | None

FACTS: dict[str, tuple[Callable[[Facts], Value], float]] = {
    "name": (lambda gpu: gpu["name"], 0),
    "uuid": (lambda gpu: gpu["uuid"], 0),
    "driver_version": (lambda gpu: gpu["driver"], 0),
    "power.limit": (lambda gpu: _scaled(gpu["power_limit_mw"], 1000), 1),
    "clocks.max.sm": (lambda gpu: gpu["sm_max_mhz"], 0),
    "pcie.link.gen.max": (lambda gpu: gpu["pcie_max_generation"], 0),
    "pcie.link.width.max": (lambda gpu: gpu["pcie_max_width"], 0),
    "persistence_mode": (lambda gpu: _flag(gpu["persistence"]), 0),
    "ecc.mode.current": (lambda gpu: _flag(gpu["ecc"]), 0),
}
"""Constant fields: nvidia-smi's field, the telemetry's in the same unit, and the allowed difference."""
SAMPLES: dict[str, tuple[Callable[[Facts], Value], float]] = {
    "clocks.current.sm": (lambda gpu: gpu["sm_mhz"], 60),
    "clocks.current.memory": (lambda gpu: gpu["memory_mhz"], 60),
    "clocks_event_reasons.active": (lambda gpu: gpu["reasons"], 0),
    "power.draw": (lambda gpu: _scaled(gpu["power_mw"], 1000), 30),
    "temperature.gpu": (lambda gpu: gpu["temperature_c"], 1),
    "utilization.gpu": (lambda gpu: gpu["utilisation_percent"], 10),
    "pcie.link.gen.current": (lambda gpu: gpu["pcie_generation"], 0),
    "pcie.link.width.current": (lambda gpu: gpu["pcie_width"], 0),
    "ecc.errors.uncorrected.volatile.total": (lambda gpu: gpu["ecc_uncorrected"], 0),
}
"""Changing fields. Clocks move in steps of 15 MHz, and power changes between two readings."""
USED, RESERVED, USED_SLACK_MIB = "memory.used", "memory.reserved", 16
"""NVML's first call for memory, which telemetry uses, counts what the driver keeps for itself as used."""
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}


def parse(text: str) -> dict[str, str | None]:
    """Field -> value of one device, from `--format=csv,nounits`; None where nvidia-smi has no value."""
    lines = list(csv.reader(text.strip().splitlines(), skipinitialspace=True))
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise ValueError(f"nvidia-smi: a line of names and one of values are expected, found {text[:200]!r}")
    names = (re.sub(r"\s*\[.*\]$", "", name.strip()) for name in lines[0])
    return {
        name: None if _MISSING.match(value.strip()) else value.strip()
        for name, value in zip(names, lines[1], strict=True)
    }


def number(text: str | None) -> Value:
    """A number, decimal or hexadecimal, and 1 for `Enabled`; other texts stay as they are."""
    if text is None:
        return None
    if text in _ON:
        return _ON[text]
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return text


def query(fields: Sequence[str], uuid: str, program: str = "nvidia-smi") -> dict[str, str | None]:
    """Like `parse`, for the fields that this nvidia-smi knows; it tries the older name of a field it does not know."""
    asked = list(fields)
    while asked:
        line = [program, f"--query-gpu={','.join(asked)}", "--format=csv,nounits", f"--id={uuid}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=ASK_S, check=False)
        if done.returncode == 0:
            answers = parse(done.stdout)
            return {newer: answers.pop(older) for newer, older in OLDER.items() if older in answers} | answers
        unknown = _NOT_A_FIELD.search(done.stdout + done.stderr)
        if unknown is None or unknown[1] not in asked:
            raise RuntimeError(f"{program}: {(done.stderr or done.stdout).strip()[:300]}")
        at = asked.index(unknown[1])
        asked[at : at + 1] = [OLDER[unknown[1]]] if unknown[1] in OLDER else []
    return {}


def beside(gpus: Any, program: str = "nvidia-smi", index: int = 0) -> list[Row]:
    """Every field of one device: telemetry, nvidia-smi, telemetry again. `gpus`: a scaling.hardware.nvml.Gpus."""
    facts = gpus.facts()[index]
    before = gpus.sample()[index]
    answers = query([*FACTS, *SAMPLES, USED, RESERVED], facts["uuid"], program)
    after = gpus.sample()[index]
    compared = [
        rows.beside(name, (_same(ours(facts)),), number(answers.get(name)), slack)
        for name, (ours, slack) in FACTS.items()
        if name in answers
    ]
    compared += [
        rows.beside(name, (_same(ours(before)), _same(ours(after))), number(answers.get(name)), slack)
        for name, (ours, slack) in SAMPLES.items()
        if name in answers
    ]
    used = [number(answers.get(name)) for name in (USED, RESERVED)]
    whole = sum(used) if all(isinstance(part, float) for part in used) else None  # type: ignore[arg-type]
    memory_mib = tuple(_scaled(sample["memory_used_bytes"], MIB) for sample in (before, after))
    return [*compared, rows.beside(f"{USED} and {RESERVED}", memory_mib, whole, USED_SLACK_MIB)]


def _same(value: Any) -> Value:
    """The value as `number` gives it, with numbers as floats."""
    return value if value is None or isinstance(value, str) else float(value)


def _scaled(value: int | None, by: float) -> float | None:
    return None if value is None else value / by


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)
