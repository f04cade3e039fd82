"""Parse a verb's options with argparse and leave its paths and Hydra's overrides aside."""

from __future__ import annotations

import argparse
import keyword
from typing import NoReturn

from scaling.cli.verbs import REMOVED, VERBS, help_of
from scaling.errors import InputError


class _Parser(argparse.ArgumentParser):
    """A parser that raises InputError with one line."""

    def error(self, message: str) -> NoReturn:
        # "argument --into: expected one argument", or "argument --verbose/-v: ..."
        name = message.split()[1].rstrip(":").partition("/")[0]
        value = next(option.value for option in VERBS[self.prog].options if option.name == name)
        raise InputError(
            f"scaling {self.prog}: {name} {f'{value} is expected' if value else 'takes no value'}"
        )


def attribute(option: str) -> str:
    """The attribute that holds an option's value: `fail_below` for --fail-below, `try_` for --try."""
    name = option.removeprefix("--").replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def split(verb: str, arguments: list[str]) -> tuple[list[str], argparse.Namespace]:
    """The other arguments in order, and the verb's own options; an option that was not given is None or False.

    InputError where a value is missing. Prints the verb's help on request; composed verbs then add Hydra's help.
    """
    if "-h" in arguments or "--help" in arguments:
        print(help_of(verb))
        if not VERBS[verb].composed:
            raise SystemExit(0)
        print()
    for word in arguments:
        if instead := REMOVED.get((verb, word.partition("=")[0].lstrip("+"))):
            raise InputError(f"scaling {verb} {word}: {instead}")
    parser = _Parser(prog=verb, add_help=False, allow_abbrev=False)
    for option in VERBS[verb].options:
        action = "store" if option.value else "store_true"
        names = (option.name, "-v") if option.name == "--verbose" else (option.name,)
        parser.add_argument(*names, action=action, dest=attribute(option.name))
    given, others = parser.parse_known_args(arguments)
    for option in VERBS[verb].options:
        value = getattr(given, attribute(option.name))
        empty = value == "" or (VERBS[verb].composed and isinstance(value, str) and "=" in value)
        if empty:  # `--resume model=mlp` has an override where the value should be
            raise InputError(f"scaling {verb}: {option.name} {option.value} is expected")
    return others, given


def parse(
    verb: str, arguments: list[str], *, least: int = 1, most: int = 1, what: str = "run folders"
) -> tuple[list[str], argparse.Namespace]:
    """Paths and options of a verb that takes no overrides. InputError, or help on request."""
    paths, given = split(verb, arguments)
    count(verb, paths, least=least, most=most, what=what)
    return paths, given


def count(verb: str, paths: list[str], *, least: int, most: int, what: str = "run folders") -> None:
    """Check the paths. InputError for an unknown option among them or a wrong number of them."""
    unknown = next((word for word in paths if word.startswith("--")), None)
    if unknown is not None:
        options = ", ".join(option.name for option in VERBS[verb].options) or "none"
        raise InputError(f"scaling {verb} {unknown}: no such option; there is {options}")
    if not least <= len(paths) <= most:
        many = str(most) if least == most else f"{least} or more"
        expected = f"one {what.removesuffix('s')}" if most == 1 else f"{many} {what}"
        raise InputError(f"scaling {verb}: {expected} expected, {len(paths)} given")
