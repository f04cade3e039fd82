"""Each verb has a page in docs/commands that says what the program itself says of it.

`scaling --help` is one screen; `scaling help` leads on to every verb.
"""

import contextlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from scaling import resources
from scaling.cli.main import _verb, help_text, main
from scaling.cli.verbs import VERBS, help_of
from scaling.cli.verbs.arguments import attribute, split
from scaling.config.compose import cut
from scaling.config.messages import keys_of
from scaling.config.schema import WhatIfConfig

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ["A call", "Options", "Exit status", "Files", "See also"]
COMPOSED = [verb for verb, entry in VERBS.items() if entry.composed]
OVERRIDES = "Overrides"
"""A section of the verbs that take some, after their options."""


def page(verb):
    return (DOCS / "commands" / f"{verb}.md").read_text(encoding="utf-8")


def sections(text):
    """Title -> text of every section."""
    _, *found = re.split(r"^## ", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in found}


def called(verb):
    """The options of a verb as they are called: `--into DIR`."""
    return [f"{option.name} {option.value}".rstrip() for option in VERBS[verb].options]


def source(verb):
    """The text of a verb's own file, or of its function where several verbs share the file."""
    function = _verb(verb)
    shared = VERBS[verb].home or any(other.home == verb for other in VERBS.values())
    return inspect.getsource(function if shared else inspect.getmodule(function))


def test_every_verb_has_a_page_and_every_page_a_verb():
    assert {p.stem for p in (DOCS / "commands").iterdir()} == set(VERBS)


def test_the_site_and_the_index_list_every_page():
    nav = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    groups = [entry for entry in nav if isinstance(entry, dict)]
    (listed,) = (pages for entry in groups for pages in entry.values() if "commands.md" in pages)
    assert listed == ["commands.md", *(f"commands/{verb}.md" for verb in VERBS)]
    index = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(commands/(\w+)\.md\)", index)) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_has_its_sections_in_order(verb):
    text = page(verb)
    assert text.startswith(f"# scaling {verb}\n")
    titles = [title for title in sections(text) if title != OVERRIDES]
    assert titles == SECTIONS
    call = sections(text)["A call"]
    assert re.search(rf"^    scaling {verb}\b", call, re.MULTILINE)
    assert "```text\n" in call  # and what it printed


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_lists_the_options_that_the_verb_takes_and_no_others(verb):
    listed = re.findall(r"^\| `(--.+?)` \|", sections(page(verb))["Options"], re.MULTILINE)
    assert listed == called(verb)


@pytest.mark.parametrize(
    "verb",
    # Hydra composes for the help of some verbs, which takes its time.
    [pytest.param(verb, marks=pytest.mark.slow if verb in COMPOSED[1:] else ()) for verb in VERBS],
)
def test_the_help_of_a_verb_has_its_options(verb, capsys):
    with contextlib.suppress(SystemExit):
        main([verb, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(help_of(verb))
    assert out.count(help_of(verb)) == 1
    assert all(f"  {option} " in help_of(verb) for option in called(verb))
    assert max(map(len, help_of(verb).splitlines())) <= 100
    assert ("== Groups" in out) == (verb in COMPOSED)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_every_option_that_it_takes(verb):
    options = VERBS[verb].options
    read = set(re.findall(r"\bgiven\.(\w+)", source(verb)))
    assert read == {attribute(option.name) for option in options}
    words = [word for option in called(verb) for word in option.split()]
    others, given = split(verb, words)
    assert others == []
    assert vars(given) == {attribute(option.name): option.value or True for option in options}


@pytest.mark.parametrize("verb", VERBS)
def test_the_calls_in_the_help_name_options_that_there_are(verb):
    named = set(re.findall(r"--[a-z-]+", " ".join(f"{call} {what}" for call, what in VERBS[verb].calls)))
    assert named <= {option.name for option in VERBS[verb].options}


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_says_how_each_exit_status_comes_about(verb):
    found = re.findall(r"^\| (\d) \|", sections(page(verb))["Exit status"], re.MULTILINE)
    assert found == sorted(set(found))
    assert found[0] == "0"
    assert "2" in found
    assert set(found) <= {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize("verb", sorted({*COMPOSED, "predict", "compare"}))
def test_a_page_names_override_keys_that_there_are(verb):
    keys = set(keys_of(OmegaConf.structured(WhatIfConfig)))
    keys |= {path.name for path in resources.folder("conf").iterdir() if path.is_dir()}
    named = re.findall(r"`\+?([a-z_.]+)=", sections(page(verb))[OVERRIDES])
    assert named
    assert set(named) <= keys


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
