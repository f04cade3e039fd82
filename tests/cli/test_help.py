"""`scaling --help` is one screen; `scaling help` leads on to every verb."""

from __future__ import annotations

import re
import shlex

import pytest

from scaling.cli.main import help_text, main
from scaling.cli.verbs import VERBS, help_of
from scaling.config.compose import cut


def test_the_help_fits_one_screen(capsys):
    assert main(["--help"]) == 0
    screen = capsys.readouterr().out.splitlines()
    assert len(screen) <= 23  # and the prompt
    assert max(map(len, screen)) <= 80


def test_every_door_is_a_command_that_the_program_takes():
    calls = re.findall(r"^  .{20}  scaling (.+?)(?:  |$)", help_text(), re.MULTILINE)
    assert [call.split()[0] for call in calls[:5]] == ["run", "launch", "submit", "doctor", "trace"]
    for call in calls:
        verb, *words = shlex.split(call)
        before = cut(words)[0] if verb == "launch" else words
        known = {option.name for option in VERBS[verb].options}
        assert {word for word in before if word.startswith("--")} <= known


@pytest.mark.parametrize("strategy", ["DDP", "FSDP", "HSDP", "tensor parallel"])
def test_the_help_names_each_strategy(strategy):
    assert strategy in help_text()


def test_help_without_a_verb_is_the_first_screen(capsys):
    assert main(["help"]) == 0
    assert capsys.readouterr().out == help_text() + "\n"


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_its_options_and_names_its_page(verb, capsys):
    assert main(["help", verb]) == 0
    out = capsys.readouterr().out
    assert out.startswith(help_of(verb))
    assert f"docs/commands/{verb}.md" in out


def test_help_all_has_every_call(capsys):
    assert main(["help", "all"]) == 0
    out = capsys.readouterr().out
    assert all(call in out for verb in VERBS.values() for call, _ in verb.calls)
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "scaling: rnu: no such command; did you mean `run`?"),
        (["run", "plan"], "scaling: scaling help: one verb or `all` is expected, 2 words given"),
    ],
)
def test_help_of_something_else_is_one_line(words, message, capsys):
    assert main(["help", *words]) == 2
    assert capsys.readouterr().err.strip() == message
