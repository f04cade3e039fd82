"""Every public function that is longer than a few lines says what it does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORT = 3
"""Statements of a function that need no docstring."""
OF_TORCH = ROOT / "simulator" / "scaling_simulator" / "norms.py"
"""Operators of torch, with its names and arguments."""


def undocumented(source):
    """Names of public functions and methods in `source` that should have a docstring and have none."""
    found = []

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                visit(child)
            elif isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
                statements = sum(isinstance(part, ast.stmt) for part in ast.walk(child)) - 1
                if statements > SHORT and ast.get_docstring(child) is None:
                    found.append(child.name)

    visit(ast.parse(source))
    return found


@pytest.mark.parametrize(
    "room",
    [*sorted(path for path in (ROOT / "scaling").iterdir() if path.is_dir()), OF_TORCH.parent],
    ids=lambda path: path.name,
)
def test_longer_functions_have_a_docstring(room):
    missing = {
        str(path.relative_to(ROOT)): names
        for path in room.rglob("*.py")
        if path != OF_TORCH and (names := undocumented(path.read_text()))
    }
    assert missing == {}


def test_what_needs_one():
    long = "\n    ".join(["a = 1"] * (SHORT + 1))
    assert undocumented(f"def f():\n    {long}\nclass C:\n def g(self): return 1") == ["f"]
    assert undocumented(f"def _f():\n    {long}\ndef g():\n    'Say.'\n    {long}") == []
