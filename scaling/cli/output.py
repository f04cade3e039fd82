"""Output of the verbs: text or a JSON document on standard output, messages on standard error.

Names, errors and notes come from files of others, so all text goes through scaling.plain; no verb prints by itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from scaling.plain import message, plain
from scaling.records import codec


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, on standard output unless another file is given. A newline inside one becomes a space."""
    print(*(plain(line).replace("\n", " ") for line in lines), sep="\n", file=file, flush=file is not None)


def print_json(document: Any) -> None:
    """Print one JSON document on standard output; in ASCII, with control characters escaped."""
    print(json.dumps(codec.encode(document), indent=1).replace("\x7f", "\\u007f"))


def warn(error: object) -> None:
    """Print one line on standard error."""
    say(message(f"scaling: {error}"), file=sys.stderr)
