"""A verb's own options are read apart from paths and from what is Hydra's."""

import pytest

from scaling.cli.main import main
from scaling.cli.verbs import REMOVED
from scaling.cli.verbs.arguments import parse, split
from scaling.errors import InputError


def test_overrides_and_flags_of_hydra_stay_in_their_order():
    line = ["-m", "topology=a,b", "--json", "~env.X", "--cfg", "job", "+env.Y='a b'", "--config-dir", "mine"]
    others, given = split("plan", line)
    assert others == [word for word in line if word != "--json"]
    assert given.json


def test_options_stand_before_between_and_behind_paths():
    for line in (["--json", "a", "b"], ["a", "--json", "b"], ["a", "b", "--json"]):
        paths, given = parse("compare", line, least=2, most=9)
        assert (paths, given.json, given.fail_below) == (["a", "b"], True, None)


@pytest.mark.parametrize("line", [["a", "--fail-below", "0.9"], ["a", "--fail-below=0.9"]])
def test_a_value_follows_as_a_word_or_behind_an_equals_sign(line):
    assert parse("compare", line)[1].fail_below == "0.9"


def test_options_are_not_abbreviated():
    with pytest.raises(InputError, match="scaling analyze --js: no such option; there is --json"):
        parse("analyze", ["run", "--js"])


@pytest.mark.parametrize(
    ("verb", "line", "said"),
    [
        ("run", ["--resume"], "scaling run: --resume RUN is expected"),
        ("run", ["--resume="], "scaling run: --resume RUN is expected"),
        ("run", ["--resume", "model=mlp"], "scaling run: --resume RUN is expected"),
        ("compare", ["a", "--into", "--json"], "scaling compare: --into DIR is expected"),
        ("plan", ["--json=yes"], "scaling plan: --json takes no value"),
        ("report", ["run", "--verbose=1"], "scaling report: --verbose takes no value"),
    ],
)
def test_a_value_that_is_missing_or_too_much_is_said_in_a_line(verb, line, said):
    with pytest.raises(InputError) as refused:
        split(verb, line)
    assert str(refused.value) == said


@pytest.mark.parametrize(("verb", "word"), REMOVED)
def test_a_removed_word_names_what_to_use_instead(verb, word, capsys):
    assert main([verb, word, "file"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"scaling {verb} {word}: {REMOVED[verb, word]}")
