"""A rank 0 that cannot choose a folder tells the others, which train without the probe."""

from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks

WAIT_S = 120
"""After this time a rank gives up one that does not come."""


@pytest.mark.slow
def test_a_working_directory_that_is_gone_is_told_to_the_others(tmp_path):
    ranks = run_ranks(Path(__file__).with_name("vanished.py"), 2, tmp_path / "store", tmp_path / "gone")
    for took_s, folder in ranks:
        assert folder is None
        assert took_s < WAIT_S
