"""A multirun lists its combinations: a sweeper of Hydra's that searches by results is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import assert_refusal, run_scaling

from scaling import resources

PLUGINS = Path(__file__).with_name("plugins")


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_sweeper_that_searches_is_refused_before_anything_is_written(verb, tmp_path):
    path = os.pathsep.join([resources.import_path(), str(PLUGINS)])
    words = (
        verb,
        "-m",
        "hydra/sweeper=climbing",
        "topology=local",
        "model=mlp",
        "run_dir=search",
        "seed=1,2",
    )
    done = run_scaling(*words, cwd=tmp_path, env={"PYTHONPATH": path})
    said = "searches by results, which is removed; -m alone measures every combination that is listed"
    assert_refusal(done.returncode, done.stdout, done.stderr, said)
    assert list(tmp_path.iterdir()) == []
