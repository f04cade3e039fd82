"""JSON Schemas of analysis.json and of the documents that `--json` prints, made from the types of the results.

    python tests/golden/schemas.py     # writes docs/schemas/NAME.json anew

Every key is always there, so all are required and no others are allowed. The reports of recorders' files
(`scaling trace` of NCCL Inspector, `scaling import`) have no type, and no schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from scaling.analysis.results.comparison import Comparison, Prediction, Sweep
from scaling.analysis.results.doctor import Diagnosis
from scaling.analysis.results.run import Analysis
from scaling.analysis.results.verdicts import SelfTest, Verification
from scaling.settings.plan import Plan
from scaling_simulator.simulate.results import RankedMeshes, SimulationResults

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
ROOTS = {
    "analysis": Analysis,  # also of study and trace
    "prediction": Prediction,
    "simulation": SimulationResults,
    "ranking": RankedMeshes,
    "verification": Verification,
    "selftest": SelfTest,
    "doctor": Diagnosis,
}
PLAN_KEYS = {
    "cases": {"type": "array"},
    "run_dir": {"type": "string"},
    "seconds_max": {"type": "number"},
    "seconds": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "left_out": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    "idle_rank_hours_max": {"type": "number"},
    "commands": {"type": "array", "items": {"type": "string"}},
}
"""What `scaling plan --json` adds to plan.json."""


def made() -> dict[str, dict[str, Any]]:
    """Name -> schema of one document."""
    schemas = {name: _schema(root) for name, root in ROOTS.items()}
    schemas["plan"] = _extended(_schema(Plan), "Plan", PLAN_KEYS)
    sweep = _schema(Sweep)
    pair = _extended(_schema(Comparison), "Comparison", {"sweep": {"$ref": "#/$defs/Sweep"}})
    pair["$defs"] |= sweep["$defs"]
    several = {
        "type": "object",
        "properties": {
            "comparisons": {"type": "array", "items": _without(pair["$defs"]["Comparison"], "sweep")},
            "sweep": {"$ref": "#/$defs/Sweep"},
        },
        "required": ["comparisons"],
        "additionalProperties": False,
    }
    schemas["comparison"] = {"anyOf": [pair.pop("$ref") and {"$ref": "#/$defs/Comparison"}, several], **pair}
    return {
        name: {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}
        for name, schema in schemas.items()
    }


def _schema(root: type) -> dict[str, Any]:
    schema = msgspec.json.schema(root)
    for kind in schema["$defs"].values():
        if kind.get("type") == "object" and "properties" in kind:
            # JSON keys that are Python keywords are fields with an underscore at the end.
            kind["properties"] = {
                key.rstrip("_"): {k: v for k, v in of.items() if k != "default"}
                for key, of in kind["properties"].items()
            }
            kind |= {"required": sorted(kind["properties"]), "additionalProperties": False}
        kind.pop("description", None)  # of the code, not of the document
    return schema


def _extended(schema: dict[str, Any], name: str, keys: dict[str, Any]) -> dict[str, Any]:
    kind = schema["$defs"][name]
    kind["properties"] |= keys
    kind["required"] = sorted(kind["properties"])
    return schema


def _without(kind: dict[str, Any], key: str) -> dict[str, Any]:
    properties = {name: of for name, of in kind["properties"].items() if name != key}
    return {**kind, "properties": properties, "required": sorted(properties)}


def errors(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value breaks a schema, for the words that the schemas here use."""
    if "$ref" in schema:
        return errors(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "anyOf" in schema:
        found = [errors(value, option, root, at) for option in schema["anyOf"]]
        return [] if [] in found else min(found, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value!r} is none of {schema['enum']}"]
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        return [f"{at}: {value!r} is no {kind}"]
    if kind == "array" and "items" in schema:
        return [e for i, item in enumerate(value) for e in errors(item, schema["items"], root, f"{at}[{i}]")]
    if kind == "object":
        return _object_errors(value, schema, root, at)
    return []


def _object_errors(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{at}: {key} is missing" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        if key in properties or isinstance(others, dict):
            found += errors(item, properties.get(key, others), root, f"{at}.{key}")
        elif not others:
            found.append(f"{at}: {key} is not in the schema")
    return found


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    names = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, names[kind])


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, schema in made().items():
        text = json.dumps(schema, indent=1, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
