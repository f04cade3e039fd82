"""Every public function that is longer than a few lines says what it does; modules that texts cite are there."""

import ast
import io
import re
import tokenize
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


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
    for path in (ROOT / "scaling").rglob("*.py")
}
"""The source of each module, by its dotted name."""
ROOMS = {part for name in MODULES for part in name.split(".")[:-1]}
CLASSES = {name for source in MODULES.values() for name in re.findall(r"^class (\w+)", source, re.MULTILINE)}
CITATION = re.compile(r"(?<![\w./`-])(?:[a-z_]\w*\.)+[A-Za-z_]\w*")
OF_FILES = {"html", "js", "json", "md", "py", "txt", "yaml"}
OTHERS = {"measure.step_timeout_s", "probe.step", "profiler.step", "threading.Event", "torch.cuda.Event"}
"""Override keys, variables and names of other libraries."""


def cited_in_vain(source):
    """Dotted names in `source`'s docstrings and comments that begin like ours, or end in a class, and lead nowhere."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [t.string for t in tokens if t.type == tokenize.COMMENT or t.string.startswith('"""')]
    return [name for text in texts for name in CITATION.findall(text) if not _leads_somewhere(name)]


def _leads_somewhere(cited):
    first, last, head = cited.split(".")[0], cited.split(".")[-1], cited.rpartition(".")[0]
    if last in OF_FILES or cited in OTHERS or not (first in ROOMS or last in CLASSES):
        return True
    modules = [name for name in MODULES if f".{name}".endswith(f".{head}")]
    return any(f".{cited}." in f".{name}." for name in MODULES) or any(
        re.search(rf"\b{last}\b", MODULES[name]) for name in modules
    )


@pytest.mark.parametrize(
    "room", sorted(path for path in (ROOT / "scaling").iterdir() if path.is_dir()), ids=str
)
def test_what_docstrings_cite_is_there(room):
    stale = {
        str(path.relative_to(ROOT)): names
        for path in room.rglob("*.py")
        if (names := cited_in_vain(path.read_text()))
    }
    assert stale == {}


def test_which_citations_lead_nowhere():
    assert cited_in_vain("# as statistics.rounds has it, in settings.run.KINDS and curve.AlphaBeta") == []
    assert cited_in_vain("# see network.flow\n'network.flow'") == ["network.flow"]
    assert cited_in_vain('"""As in ring.AlphaBeta."""') == ["ring.AlphaBeta"]
    assert cited_in_vain("# settings.run.NO_SUCH_NAME") == ["settings.run.NO_SUCH_NAME"]
