"""Text from outside, made safe for a terminal. Everything that prints sends it through here."""

from __future__ import annotations

import re
import sys

_UNSAFE = re.compile(
    r"""(?:\x1b\[|\x9b)[0-9:;<=>?]*[ -/]*[@-~]                  # CSI: colours, cursor, erasing
    |(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)   # OSC and its like: title, clipboard
    |[\x00-\x08\x0b-\x1f\x7f-\x9f]                               # C0 and C1 but tab and newline
    |[\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]   # invisible
    """,
    re.VERBOSE,
)
"""Escape sequences, control characters, and what is invisible or turns the direction of writing (Unicode's Cf)."""
_LINE_ENDS = re.compile("\r\n|[\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, as in file names that are not UTF-8: no terminal can show them, and they cannot be encoded."""


def plain(text: str) -> str:
    """Text without escape sequences, control and invisible characters; tabs and newlines stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub("", _LINE_ENDS.sub("\n", _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)))


LINE_MAX = 300
"""Characters of an error or a note. More is in the files that it names."""
_TAIL = 100
"""How many of these are kept from the end, where the remedy and the files stand."""


def message(text: str) -> str:
    """An error or a note as it is printed: one line of at most LINE_MAX characters, without its middle if longer."""
    line = one_line(text)
    return line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - _TAIL - 5]} ... {line[-_TAIL:]}"


def tell(note: str) -> None:
    """Print a note of this program on standard error."""
    print(message(f"scaling: {note}"), file=sys.stderr)


def one_line(text: str) -> str:
    """Such text on one line: every run of white space is one space."""
    return " ".join(plain(" ".join(text.split())).split())
