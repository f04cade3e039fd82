"""Ranks that cannot agree, since rank 0 has no folder or one opens no Probe, train without the probe."""

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


@pytest.mark.slow
@pytest.mark.parametrize("alone", [0, 1])
def test_one_rank_with_a_probe_waits_less_than_the_collectives_of_the_other(alone, tmp_path):
    ranks = run_ranks(
        Path(__file__).with_name("vanished.py"), 2, tmp_path / "store", tmp_path / "gone", alone
    )
    assert [folder for _, folder in ranks] == [None, None]
    assert all(took_s < 8 for took_s, _ in ranks)
