"""The command line: one verb a subcommand, in the order of a user's work. Imports are made where they are used."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable

from scaling.errors import InputError, ScalingError

HELP = """\
usage: scaling VERB ...

Measure how a DDP training scales, what eats the rest, and how sure that is.

  run [overrides]              plan, measure, analyse, report, here
  run -m topology=a,b          one run per combination, then a comparison of them
  plan [overrides] [--json]    what would run, for how long, with which commands
  analyze RUN [--json]         rebuild everything derived from the rank files
  compare RUN RUN... [--json] [--fail-below RATIO]
                               the runs against the first: ratio, and which part differs
  report RUN [--open]          the report of a run: print it, say where the page is
  sync RUN                     upload a run's offline W&B runs

Overrides are Hydra's: model=mlp topology=emulated_pcie topology.link.rate=200mbit
world_sizes=[1,2] measure=quick. `scaling run --help` lists every key.
Tab completion: eval "$(scaling -sc install=bash)"
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `scaling` command; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        from scaling import __version__

        print(__version__)
        return 0
    if arguments[0] in ("-sc", "--shell-completion"):
        from scaling.completion import complete

        return complete(arguments, tuple(VERBS))
    try:
        verb = VERBS.get(arguments[0])
        if verb is None:
            near = difflib.get_close_matches(arguments[0], VERBS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(VERBS)} is expected"
            raise InputError(f"{arguments[0]}: no such command; {hint}")
        return verb(arguments[1:])
    except ScalingError as error:
        print(f"scaling: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("scaling: interrupted", file=sys.stderr)
        return 3
    except BrokenPipeError:  # `scaling ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def run(arguments: list[str]) -> int:
    """Measure here."""
    from scaling.commands import run as command

    return command(arguments)


def plan(arguments: list[str]) -> int:
    """Say what would run."""
    from scaling.commands import plan as command

    as_json = "--json" in arguments
    return command([a for a in arguments if a != "--json"], as_json=as_json)


def analyze(arguments: list[str]) -> int:
    """Rebuild what is derived."""
    from scaling.commands import analyze as command

    paths, options = _parse("analyze", arguments, {"--json": False}, least=1, most=1)
    return command(paths[0], as_json=bool(options["--json"]))


def compare(arguments: list[str]) -> int:
    """Compare runs with the first."""
    from scaling.commands import compare as command

    paths, options = _parse("compare", arguments, {"--json": False, "--fail-below": True}, least=2, most=99)
    text = options.get("--fail-below")
    try:
        ratio = None if text is None else float(text)
    except ValueError as error:
        raise InputError(f"--fail-below {text}: a ratio such as 0.95 is expected") from error
    return command(paths, as_json=bool(options["--json"]), fail_below=ratio)


def report(arguments: list[str]) -> int:
    """Show a run's report."""
    from scaling.commands import report as command

    paths, options = _parse("report", arguments, {"--open": False}, least=1, most=1)
    return command(paths[0], show=bool(options["--open"]))


def sync(arguments: list[str]) -> int:
    """Upload offline W&B runs."""
    from scaling.commands import sync as command

    paths, _ = _parse("sync", arguments, {}, least=1, most=1)
    return command(paths[0])


VERBS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "plan": plan,
    "analyze": analyze,
    "compare": compare,
    "report": report,
    "sync": sync,
}


def _parse(
    verb: str, arguments: list[str], known: dict[str, bool], *, least: int, most: int
) -> tuple[list[str], dict[str, str | None]]:
    """Paths and options; `known` says which options take a value. InputError, or help on request."""
    if "-h" in arguments or "--help" in arguments:
        print(next(line.strip() for line in HELP.splitlines() if line.strip().startswith(f"{verb} ")))
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
        expected = "one run folder" if most == 1 else f"{least} or more run folders"
        raise InputError(f"scaling {verb}: {expected} expected, {len(paths)} given")
    return paths, options


if __name__ == "__main__":
    sys.exit(main())
