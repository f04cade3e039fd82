"""The command line: one verb a subcommand, in the order of a user's work. Imports are made where they are used."""

from __future__ import annotations

import difflib
import errno
import importlib
import keyword
import os
import sys
from collections.abc import Callable

from scaling.errors import InputError, ScalingError
from scaling.verbs import USAGE, lines

_OUTSIDE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ESTALE)
"""What a file system may say to a program without fault: somebody else's folder, a full disk, a server that is gone."""
HEAD = """\
usage: scaling VERB ...

Measure how a DDP training scales, what eats the rest, and how sure that is.
"""
TAIL = """
Overrides are Hydra's: model=mlp topology=emulated_pcie topology.link.rate=200mbit
world_sizes=[1,2] measure=quick. `scaling run --help` lists every key.
Tab completion: eval "$(scaling -sc install=bash)\"\
"""


def help_text() -> str:
    """What `scaling --help` prints."""
    return "\n".join([HEAD, *(lines(verb) for verb in USAGE), TAIL])


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `scaling` command; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:  # a script whose variable is empty is not to pass
        print(help_text(), file=sys.stderr)
        return InputError.exit_code
    if arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if arguments[0] == "--version":
        from scaling import __version__

        print(__version__)
        return 0
    if arguments[0] in ("-sc", "--shell-completion"):
        from scaling.completion import complete

        return complete(arguments, tuple(USAGE))
    os.umask(
        os.umask(0o022) | 0o002
    )  # whatever the shell says: what is written is not for everybody to change
    try:
        return _verb(arguments[0])(arguments[1:])
    except ScalingError as error:
        print(f"scaling: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("scaling: interrupted", file=sys.stderr)
        return 3
    except BrokenPipeError:  # `scaling ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        if error.errno not in _OUTSIDE:
            raise
        # A write that fails does not know of its file.
        where = f"{error.filename}: " if error.filename else ""
        print(f"scaling: {where}{error.strerror}", file=sys.stderr)
        return ScalingError.exit_code


def _verb(name: str) -> Callable[[list[str]], int]:
    if name not in USAGE:
        near = difflib.get_close_matches(name, USAGE, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(USAGE)} is expected"
        raise InputError(f"{name}: no such command; {hint}")
    file = f"{name}_" if keyword.iskeyword(name) else name
    module = importlib.import_module(f"scaling.verbs.{file}")
    return module.main  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
