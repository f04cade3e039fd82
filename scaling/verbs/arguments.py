"""Paths and options of the verbs that take no overrides."""

from __future__ import annotations

from scaling.errors import InputError
from scaling.verbs import lines


def parse(
    verb: str, arguments: list[str], known: dict[str, bool], *, least: int, most: int, of: str = "run folders"
) -> tuple[list[str], dict[str, str | None]]:
    """Paths and options; `known` says which options take a value. InputError, or help on request."""
    if "-h" in arguments or "--help" in arguments:
        print(lines(verb))
        raise SystemExit(0)
    paths: list[str] = []
    options: dict[str, str | None] = dict.fromkeys((k for k, value in known.items() if not value), "")
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            paths.append(word)
        elif name not in known:
            raise InputError(f"scaling {verb} {word}: no such option; there is {', '.join(known) or 'none'}")
        elif not known[name]:
            options[name] = "yes"
        elif equals or rest:
            options[name] = value if equals else rest.pop(0)
        else:
            raise InputError(f"scaling {verb} {word}: a value is expected")
    if not least <= len(paths) <= most:
        expected = f"one {of.removesuffix('s')}" if most == 1 else f"{least} or more {of}"
        raise InputError(f"scaling {verb}: {expected} expected, {len(paths)} given")
    return paths, options
