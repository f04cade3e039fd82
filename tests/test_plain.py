import ast
import unicodedata
from pathlib import Path

import pytest

import scaling
from scaling.cli.output import say, warn
from scaling.plain import LINE_MAX, message, one_line, plain

ROOT = Path(scaling.__file__).parent


@pytest.mark.parametrize(
    ("outside", "shown"),
    [
        ("\x1b[31mred\x1b[0m\x07 tape", "red tape"),
        ("\x1b]0;a new title\x07name", "name"),
        ("\x1b]52;c;cm0gLXJm\x1b\\name", "name"),
        ("\x1b]0;without an end", "]0;without an end"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b\x1b[0m[31mnested", "[31mnested"),
        ("gpj.\u202eexe", "gpj.exe"),
        ("ze\u200bro\u2066 \u00adwidth\ufeff", "zero width"),
        ("a\r\nb\u2028c\td", "a\nb\nc\td"),
        ("caf\udce9", "caf\N{REPLACEMENT CHARACTER}"),
        ("größe 模型 🚀", "größe 模型 🚀"),
    ],
)
def test_text_from_outside_can_only_be_read(outside, shown):
    assert plain(outside) == shown


def test_no_character_that_acts_on_a_terminal_is_left():
    everything = "".join(map(chr, range(0x110000)))
    left = plain(everything)
    kinds = {unicodedata.category(c) for c in left if c not in "\n\t"}
    assert "Cc" not in kinds
    assert "Cs" not in kinds
    assert [
        c for c in left if unicodedata.bidirectional(c) in ("RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI")
    ] == []
    assert plain(left) == left


def test_a_message_is_one_line():
    assert one_line("a\x1b[2J\r\n b\u2029\x0bc\n") == "a b c"


def test_every_line_that_a_verb_prints_is_safe(capsys):
    say("one\ntwo\x1b[2J", "  three")
    warn("bad\n\x1b]0;t\x07file")
    printed = capsys.readouterr()
    assert printed.out == "one two\n  three\n"
    assert printed.err == "scaling: bad file\n"


def test_verbs_print_through_one_place():
    """Help texts and completions are our own; all else goes through scaling.cli.output."""
    own = {"output.py", "completion.py", "main.py", "arguments.py"}
    printing = {
        path.name
        for path in (ROOT / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= own


def test_a_short_message_stays_as_it_is_on_one_line():
    assert message("rank 1 hung\n  in forward") == "rank 1 hung in forward"


def test_a_long_message_keeps_its_begin_and_its_end():
    line = message(f"rank 1 hung {'at a very long place ' * 50}; log: run/launches/0/log-1.txt")
    assert len(line) == LINE_MAX
    assert line.startswith("rank 1 hung at a very long place")
    assert line.endswith("; log: run/launches/0/log-1.txt")
    assert " ... " in line
