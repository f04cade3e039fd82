"""The words of the code: vague names, and docstrings that lean on others, become fewer and never more.

Each number is a limit that only falls: whoever renames some of them lowers it in the same change.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import scaling

ROOT = Path(scaling.__file__).parent

VAGUE = frozenset({"found", "one", "said", "of", "own", "known", "held", "made", "taken", "there"})
"""Names that say nothing of what they hold: a block, a point, a verdict, a match has a name of its own."""

LIMITS = {
    "analysis": (5, 0),
    "cli": (0, 0),
    "config": (0, 0),
    "hardware": (0, 0),
    "launchers": (0, 0),
    "leaves": (0, 0),
    "records": (0, 0),
    "report": (0, 0),
    "settings": (0, 0),
    "traces": (0, 0),
    "worker": (0, 0),
}
"""Room -> (vague names that it binds, docstrings that begin with "Of " or "The same")."""


def bound_names(tree: ast.AST) -> list[str]:
    """Every name that a module binds: by assignment, loop, comprehension, `with`, or as a parameter."""
    nodes = list(ast.walk(tree))
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return stored + [node.arg for node in nodes if isinstance(node, ast.arg)]


def docstrings(tree: ast.AST) -> list[str]:
    """The docstrings of a module, its classes and functions, and the strings that stand below fields."""
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def counted() -> dict[str, tuple[int, int]]:
    """Room -> how many of each it has now."""
    names: Counter[str] = Counter()
    leaning: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        room = parts[0] if len(parts) > 1 else "leaves"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names[room] += sum(name in VAGUE for name in bound_names(tree))
        leaning[room] += sum(text.startswith(("Of ", "The same")) for text in docstrings(tree))
    return {room: (names[room], leaning[room]) for room in sorted(names | leaning) if room != "_shipped"}


@pytest.mark.parametrize("room", sorted(LIMITS))
def test_words_only_become_clearer(room):
    names, leaning = counted().get(room, (0, 0))
    assert names <= LIMITS[room][0], "name what it holds"
    assert leaning <= LIMITS[room][1], "say the sentence in full"


def test_every_room_has_a_limit():
    assert counted().keys() <= LIMITS.keys()
