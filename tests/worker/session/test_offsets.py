"""The first rank of each host compares its clock with rank 0's, for all ranks of its host."""

from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("offset_ranks.py")
MS = 1_000_000


def test_ranks_of_a_host_share_what_its_first_one_found(tmp_path):
    zero, one, two, three = run_ranks(SCRIPT, 4, tmp_path / "store")
    assert (zero["offset_ns"], zero["bound_ns"]) == (0, 0)
    assert one == zero
    assert three == two
    assert two["offset_ns"] == pytest.approx(1000 * MS, abs=two["bound_ns"])
    assert two["bound_ns"] < 50 * MS
