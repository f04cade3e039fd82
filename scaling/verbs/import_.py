"""`scaling import`: what is known of a machine, as a topology that plan and predict use."""

from __future__ import annotations

import json
from pathlib import Path

from scaling.errors import InputError, ScalingError
from scaling.files import write_text
from scaling.trace.imported import import_log, import_topo, import_xml
from scaling.trace.layout import clean_name
from scaling.verbs.arguments import parse

KINDS = {"nccl-tests": import_log, "topo": import_topo, "nccl-xml": import_xml}
SIZE_MAX = 64 << 20
"""Bytes that are read of any of these files."""


def main(arguments: list[str]) -> int:
    """0; 1 where the log's data are corrupt. The file goes to --into DIR, else to conf/topology here."""
    words, options = parse("import", arguments, least=2, most=2, of="words (KIND FILE)")
    kind, path = words[0], Path(words[1])
    if kind not in KINDS:
        raise InputError(f"scaling import {kind}: one of {', '.join(KINDS)} is expected")
    name = clean_name(options.get("--name") or path.name.split(".")[0])
    found = KINDS[kind](_read(path), path.name, name)
    if "--json" not in options:
        print("\n".join(found.lines))
    target = None
    if found.yaml is not None:
        target = Path(options.get("--into") or Path("conf") / "topology") / f"{name}.yaml"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, found.yaml)
        except OSError as error:
            raise InputError(
                f"{target}: cannot be written ({error.strerror}); name a folder with --into"
            ) from error
    if "--json" in options:
        print(json.dumps({**found.document, "topology": None if target is None else str(target)}, indent=1))
    elif target is not None:
        print(f"# topology    {target}: scaling plan --config-dir {target.parent.parent} topology={name}")
    else:
        print("# topology    none written: the file holds no all_reduce that could be fitted")
    if found.corrupt:
        raise ScalingError(f"{path}: values came out wrong in this test; no topology is made of it")
    return 0


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > SIZE_MAX:
            raise InputError(f"{path}: longer than 64 MiB; the output of one tool is expected")
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); a file is expected") from error
