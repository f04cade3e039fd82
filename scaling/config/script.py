"""Check the command line of `scaling launch`: which overrides a launch of one's own script takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaling.errors import InputError

KEYS = ("topology", "launcher", "cluster", "env", "threads", "repeats", "world_sizes", "run_dir")
"""What says where and how often a script runs; all else is the script's own."""
REPEATS = 2
_VALUED = ("--world-sizes", "--time-limit", "--config-dir")
"""Options before the script that are followed by a value."""


def cut(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our options and overrides, the script and its arguments); the script is the first word that is neither."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if not word.startswith("-") and ("=" not in word or Path(word).is_file()):
            break
        index += 2 if word in _VALUED else 1
    return list(words[:index]), list(words[index:])


def overrides(words: Sequence[str], world_sizes: str | None) -> list[str]:
    """What to compose. InputError for a setting that a script has itself, or without any world size."""
    found = list(words)
    keys = {word.lstrip("+~").partition("=")[0] for word in words if not word.startswith("-")}
    for key in keys:
        if key.partition(".")[0].partition("@")[0] not in KEYS:
            raise InputError(
                f"{key}: the script decides it, not `scaling launch`, which takes {', '.join(KEYS)}; "
                "pass the script's own arguments after it"
            )
    if world_sizes is not None:
        parts = world_sizes.strip("[]").split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise InputError(f"--world-sizes {world_sizes}: numbers of ranks are expected, such as 1,2,4")
        found.append(f"world_sizes=[{','.join(part.strip() for part in parts)}]")
    elif "world_sizes" not in keys and not any(word.startswith("-") for word in words):
        raise InputError("scaling launch: --world-sizes is expected, such as --world-sizes 1,2,4")
    if "repeats" not in keys:
        found.append(f"repeats={REPEATS}")
    return found
