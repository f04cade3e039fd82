"""What rank 0 tells the launcher."""

import json

from scaling.worker.session.progress import COMPILE_S, Progress


def test_a_word_says_how_far_it_is_and_what_is_not_known_yet(tmp_path):
    Progress(tmp_path / "progress.json", rank=0)("warm-up", 0.5, elapsed_s=1.234, left_s=2.0)
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "stage": "warm-up",
        "rounds": 0.5,
        "elapsed_s": 1.2,
        "left_s": 2.0,
        "step_s": None,
        "expected_s": None,
    }


def test_what_takes_longer_says_about_how_long(tmp_path):
    Progress(tmp_path / "progress.json", rank=0)("compiling", expected_s=COMPILE_S)
    assert json.loads((tmp_path / "progress.json").read_text())["expected_s"] == COMPILE_S


def test_a_step_that_was_timed_is_in_every_word_from_then_on(tmp_path):
    progress = Progress(tmp_path / "progress.json", rank=0)
    progress.step_s = 0.25
    progress("round 1")
    assert json.loads((tmp_path / "progress.json").read_text())["step_s"] == 0.25


def test_other_ranks_say_nothing(tmp_path):
    Progress(tmp_path / "progress.json", rank=1)("warm-up")
    assert not list(tmp_path.iterdir())
