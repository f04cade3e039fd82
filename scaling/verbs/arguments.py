"""A verb's own paths and options, and what of its command line is Hydra's."""

from __future__ import annotations

from scaling.errors import InputError
from scaling.verbs import COMPOSED, OPTIONS, help_of


def split(verb: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The other words, and the verb's own options that were given; a flag's value is empty.

    InputError where a value is missing. On request prints the verb's help; verbs that compose add Hydra's to it.
    """
    if "-h" in arguments or "--help" in arguments:
        print(help_of(verb))
        if verb not in COMPOSED:
            raise SystemExit(0)
        print()
    others: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in OPTIONS[verb]:
            others.append(word)
            continue
        expected, _ = OPTIONS[verb][name]
        override = verb in COMPOSED and bool(rest) and "=" in rest[0]
        if expected and not equals and rest and not override:
            value = rest.pop(0)
        if expected and not value:
            raise InputError(f"scaling {verb}: {name} {expected} is expected")
        options[name] = value
    return others, options


def parse(
    verb: str, arguments: list[str], *, least: int, most: int, of: str = "run folders"
) -> tuple[list[str], dict[str, str]]:
    """Paths and options of a verb that takes no overrides. InputError, or help on request."""
    paths, options = split(verb, arguments)
    unknown = next((word for word in paths if word.startswith("--")), None)
    if unknown is not None:
        known = ", ".join(OPTIONS[verb]) or "none"
        raise InputError(f"scaling {verb} {unknown}: no such option; there is {known}")
    if not least <= len(paths) <= most:
        expected = f"one {of.removesuffix('s')}" if most == 1 else f"{least} or more {of}"
        raise InputError(f"scaling {verb}: {expected} expected, {len(paths)} given")
    return paths, options
