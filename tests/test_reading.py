import ast
import os
from pathlib import Path

import pytest

import scaling
from scaling.reading import (
    DEPTH_MAX,
    RefusedError,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    system_number,
    system_text,
)


def refused(call, *arguments):
    with pytest.raises(RefusedError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_pipe_that_nobody_writes_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(read_bytes, tmp_path / "pipe") == "it is a pipe; a regular file is expected"


def test_a_device_without_end_is_refused_also_behind_a_link(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert refused(read_bytes, tmp_path / "zero") == "it is a device; a regular file is expected"


def test_a_folder_is_refused(tmp_path):
    assert refused(read_bytes, tmp_path) == "it is a folder; a regular file is expected"


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")


def test_a_file_longer_than_its_limit_is_refused_with_both_sizes(tmp_path):
    with (tmp_path / "long").open("wb") as file:
        file.truncate(3 << 30)  # sparse
    assert refused(read_bytes, tmp_path / "long") == "it has 3 GiB, more than the limit of 64 MiB"


def test_a_file_whose_size_the_system_does_not_tell_is_bounded_too():
    assert "more than the limit of 100 bytes" in refused(open_and_read, "/proc/self/smaps", 100)


def open_and_read(path, limit_bytes):
    with open_file(path, limit_bytes) as file:
        assert os.fstat(file.fileno()).st_size == 0
    return read_bytes(path, limit_bytes)


def test_text_is_utf8(tmp_path):
    (tmp_path / "text").write_bytes(b"caf\xe9")
    assert refused(read_text, tmp_path / "text") == "it is not UTF-8 (byte 3)"
    assert read_text(tmp_path / "text", strict=False) == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "nested more than 64 levels deep"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 levels deep"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 levels deep"),
        (b"[9223372036854775808]", "an integer of more than 64 bits"),
        (b"[-9223372036854775809]", "an integer of more than 64 bits"),
        (b"1" * 5000, "not JSON (Exceeds the limit"),
        (b"[1e999]", "not finite"),
        (b"[NaN]", "not finite"),
        (b"[-Infinity]", "not finite"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 7)"),
        (b'{"a": }', "not JSON (Expecting value: line 1 column 7 (char 6))"),
        (b"", "not JSON"),
    ],
)
def test_json_out_of_bounds_is_refused(text, why):
    assert why in refused(parse_json, text)


def test_json_within_bounds_is_read(tmp_path):
    deep = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert str(parse_json(deep)) == deep.decode()
    (tmp_path / "a.json").write_bytes(
        b'{"least": -9223372036854775808, "text": "NaN [[1e999", "small": 1e-300}'
    )
    assert read_json(tmp_path / "a.json") == {"least": -(2**63), "text": "NaN [[1e999", "small": 1e-300}


@pytest.mark.parametrize(
    ("text", "number"), [("12\n", 12), ("-1\n", -1), ("max\n", None), ("", None), ("1 2", None)]
)
def test_a_file_of_the_kernels_says_a_text_or_a_number(tmp_path, text, number):
    (tmp_path / "speed").write_text(text)
    assert (system_text(tmp_path / "speed"), system_number(tmp_path / "speed")) == (text.strip(), number)
    assert system_text(tmp_path / "none") is system_number(tmp_path) is None


OURS = {
    "hardware/devices.py": "the kernel's files",
    "hardware/telemetry.py": "the kernel's files",
    "launchers/failure/evidence.py": "the kernel's files",
    "launchers/tryout.py": "the kernel's files",
    "launchers/slurm/submit.py": "templates that come with the program",
    "report/html.py": "templates that come with the program",
    "config/compose.py": "conf/, and files that were read through the door before",
}
"""Modules that open files otherwise, and what they open. Workers read only what their own run wrote."""
OTHERS = ("worker/", "_shipped/", "integrations/")
"""Workers, and callbacks that open a Probe."""


def test_no_other_module_opens_files_to_read():
    root = Path(scaling.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _opens(node) and not name.startswith(OTHERS):
                found.add(name)
    assert found == OURS.keys()


def _opens(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    if not isinstance(call.func, ast.Attribute):
        return False
    on_path = not (
        isinstance(call.func.value, ast.Name) and call.func.value.id in ("reading", "os", "webbrowser")
    )
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "shutil":
        return call.func.attr.startswith("copy")
    if call.func.attr in ("read_text", "read_bytes"):
        return on_path
    modes = [a.value for a in call.args if isinstance(a, ast.Constant)]
    return call.func.attr == "open" and on_path and modes[:1] in ([], ["r"], ["rb"])
