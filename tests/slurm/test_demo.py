"""What the demo says of bandwidths that were measured, missed, contended or not measured."""

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "demo.py"

LINKS = {"pcie": 0.239, "nvlink": 0.956}
"""Partition -> Gbit/s that its links carry."""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)  # it imports the file beside it
    spec = importlib.util.spec_from_file_location("slurm_demo", FILE)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)

    def ran(*warnings, **shares):
        for name, share in shares.items():
            comm = None if share is None else {"busbw_gbit_s": {"value": share * LINKS[name]}}
            found = {"points": [{"world_size": 2, "comm": comm}], "quality": {"warnings": list(warnings)}}
            (tmp_path / name).mkdir()
            (tmp_path / name / "analysis.json").write_text(json.dumps(found))
        return demo.judged({name: tmp_path / name for name in shares})

    return ran


@pytest.mark.parametrize(
    ("shares", "warnings", "status", "last"),
    [
        ({"pcie": 0.98, "nvlink": 0.97}, [], 0, "pcie 0.98 nvlink 0.97"),
        ({"pcie": 0.98, "nvlink": 0.7}, [], 1, "pcie 0.98 nvlink 0.70"),
        ({"nvlink": 0.7}, ["contended: 9 of 9 blocks"], 0, "nvlink 0.70 (contended, not judged)"),
        ({"pcie": None, "nvlink": 0.97}, ["the budget leaves out details"], 0, "nvlink 0.97"),
        ({"pcie": None, "nvlink": 0.7}, ["the budget leaves out details"], 1, "nvlink 0.70"),
        ({"pcie": None, "nvlink": None}, ["contended: 9 of 9 blocks"], 1, "none"),
    ],
)
def test_what_was_reached_is_judged_where_it_says_something_of_the_link(
    ran, capsys, shares, warnings, status, last
):
    assert ran(*warnings, **shares) == status
    *before, result = capsys.readouterr().out.splitlines()
    assert result == f"busbw over ideal: {last}"
    missing = [name for name, share in shares.items() if share is None]
    assert before == [f"{name}: no bandwidth of 2 ranks: {'; '.join(warnings)}" for name in missing]
