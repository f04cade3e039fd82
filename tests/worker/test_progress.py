"""What rank 0 tells the launcher."""

from __future__ import annotations

import json
from types import SimpleNamespace

from scaling.worker.progress import COMPILE_S, LATE, Progress

MEASURE = SimpleNamespace(step_timeout_s=30.0)


def test_a_word_says_how_far_it_is_and_leaves_the_patience_to_the_launcher(tmp_path):
    Progress(tmp_path / "progress.json", MEASURE, rank=0)("warm-up", 0.5, elapsed_s=1.234, left_s=2.0)
    word = json.loads((tmp_path / "progress.json").read_text())
    assert word == {"stage": "warm-up", "rounds": 0.5, "elapsed_s": 1.2, "left_s": 2.0}


def test_what_takes_longer_asks_for_more_patience(tmp_path):
    Progress(tmp_path / "progress.json", MEASURE, rank=0)("compiling", expected_s=COMPILE_S)
    assert json.loads((tmp_path / "progress.json").read_text())["patience_s"] == 30 + LATE * COMPILE_S


def test_other_ranks_say_nothing(tmp_path):
    Progress(tmp_path / "progress.json", MEASURE, rank=1)("warm-up")
    assert not list(tmp_path.iterdir())
