"""`scaling import`: another tool's file about a machine as a topology."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from scaling.cli.output import print_json, say
from scaling.cli.verbs.arguments import parse
from scaling.errors import InputError, ScalingError, while_reading
from scaling.reading import read_text
from scaling.records.files import make_folder, write_text
from scaling.traces.kinds import HEAD_BYTES, other_tool
from scaling.traces.machines.imported import import_log, import_topo, import_xml
from scaling.traces.machines.layout import clean_name

KINDS = {"nccl-tests": import_log, "topo": import_topo, "nccl-xml": import_xml}


def main(arguments: list[str]) -> int:
    """Write the topology where --config-dir DIR reads it. Exit status 1 where the log's data are corrupt."""
    words, given = parse("import", arguments, least=2, most=2, what="words (KIND FILE)")
    kind, path = words[0], Path(words[1])
    if kind not in KINDS:
        raise InputError(f"scaling import {kind}: one of {', '.join(KINDS)} is expected")
    name = clean_name(given.name or path.name.split(".")[0])
    text = _read(path)
    try:
        imported = KINDS[kind](text, path.name, name)
    except InputError as error:
        other = other_tool(text[:HEAD_BYTES].encode())
        if other is None or f"import {kind} " in other:
            raise
        raise InputError(f"{path.name}: {other}") from error
    target = None
    if imported.yaml is not None:
        into = Path(given.into or "conf")
        target = (into if into.name == "topology" else into / "topology") / f"{name}.yaml"
        if os.path.lexists(target) and _read(target) != imported.yaml:
            raise InputError(f"{target}: is there, and is not replaced; give another --name, or move it away")
        make_folder(target.parent, f"--into {given.into or 'conf'}")
        write_text(target, imported.yaml)
    if given.json:
        print_json({**imported.document, "topology": None if target is None else str(target)})
    else:
        written = f"none written: {imported.why_none}"
        if target is not None:
            plan = ["scaling", "plan", "--config-dir", str(target.parent.parent), f"topology={name}"]
            written = f"{target}: {shlex.join(plan)}"
        say(*imported.lines, f"# topology    {written}")
    if imported.corrupt:
        raise ScalingError(f"{path}: values came out wrong in this test; no topology is made of it")
    return 0


def _read(path: Path) -> str:
    with while_reading(path, "the output of one tool is expected"):
        return read_text(path, strict=False)
