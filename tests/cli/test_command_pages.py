"""Each verb has a page in docs/commands that says what the program itself says of it."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from scaling import resources
from scaling.cli.main import main
from scaling.cli.verbs import VERBS, help_of
from scaling.cli.verbs.arguments import attribute, split
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
    """The text of a verb's own file."""
    file = Path(inspect.getfile(split)).with_name(f"{verb}.py")
    return (file if file.exists() else file.with_name(f"{verb}_.py")).read_text(encoding="utf-8")


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
