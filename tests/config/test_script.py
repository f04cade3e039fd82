"""The command line of `scaling launch`: what is ours, and what is the script's."""

from __future__ import annotations

import pytest

from scaling.config.compose import cut, overrides
from scaling.errors import InputError


@pytest.mark.parametrize(
    ("line", "ours", "script"),
    [
        ("--world-sizes 1,2 train.py", "--world-sizes 1,2", "train.py"),
        ("topology=local train.py lr=0.1 --no-probe", "topology=local", "train.py lr=0.1 --no-probe"),
        ("--no-probe repeats=3 -- train.py -m", "--no-probe repeats=3", "train.py -m"),
        (
            "--time-limit 60 --world-sizes=1,2 train.py --world-sizes 3",
            "--time-limit 60 --world-sizes=1,2",
            "train.py --world-sizes 3",
        ),
        ("--world-sizes 1,2", "--world-sizes 1,2", ""),
    ],
)
def test_the_script_is_the_first_word_that_is_neither_option_nor_override(line, ours, script):
    assert cut(line.split()) == (ours.split(), script.split())


def test_a_file_with_an_equals_sign_is_a_script(tmp_path):
    path = tmp_path / "lr=1.py"
    path.touch()
    assert cut(["repeats=1", str(path), "a"]) == (["repeats=1"], [str(path), "a"])


def test_launches_are_repeated_unless_it_is_said_otherwise():
    assert overrides(["topology=local"], "1,2") == ["topology=local", "world_sizes=[1,2]", "repeats=2"]
    assert overrides(["repeats=5", "world_sizes=[1,4]"], None) == ["repeats=5", "world_sizes=[1,4]"]


@pytest.mark.parametrize(
    ("words", "sizes", "said"),
    [
        (["model=mlp"], "1,2", "model: the script decides it"),
        (["ddp.bucket_cap_mb=1"], "1,2", "ddp.bucket_cap_mb: the script decides it"),
        ([], None, "--world-sizes is expected"),
        ([], "one", "numbers of ranks are expected"),
    ],
)
def test_what_a_script_decides_is_refused(words, sizes, said):
    with pytest.raises(InputError, match=said):
        overrides(words, sizes)
