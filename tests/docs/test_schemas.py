"""What `--json` prints keeps to the schema of docs/schemas."""

import json

import pytest
from golden import schemas

from scaling.cli.main import main

FIRST, SECOND = "runs/2026-03-02/101500-a1b2c3", "runs/2026-03-02/111500-d4e5f6"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("analysis", ["analyze", FIRST]),
        ("comparison", ["compare", FIRST, SECOND]),
        ("comparison", ["compare", FIRST, SECOND, FIRST]),
        ("prediction", ["predict", FIRST, "topology.link.rate=16gbit", "world_sizes=[2,64]"]),
        ("plan", ["plan", "topology=emulated_pcie", "measure=quick"]),
        ("plan", ["plan", "topology=emulated_pcie", "batch=[1,8]"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:1]),
)
def test_a_document_keeps_to_its_schema(name, call, runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert main([*call, "--json"]) == 0
    schema = json.loads((schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert schemas.errors(json.loads(capsys.readouterr().out), schema, schema) == []
