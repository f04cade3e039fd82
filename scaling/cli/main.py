"""The command line: each verb is a subcommand, in the order of a user's work. Imports are made where they are used."""

from __future__ import annotations

import difflib
import errno
import importlib
import keyword
import os
import sys
from collections.abc import Callable
from pathlib import Path

from scaling.cli.output import tolerate_closed, warn
from scaling.cli.verbs import VERBS, help_of, lines
from scaling.errors import InputError, ScalingError

_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)
"""Errors of a write that are not bugs: a full disk, a limit of sizes, a file server that is gone."""
DOORS = """\
usage: scaling VERB ...

Measure how distributed training (DDP, FSDP, HSDP, tensor parallel) scales,
where the lost efficiency goes, and how certain the answer is.

  a model, here         scaling run model=resnet18
  my training script    scaling launch --world-sizes 1,2,4 train.py
  a Slurm cluster       scaling submit -m topology=pcie_node,nvlink_node
  this machine          scaling doctor
  files that I have     scaling trace PATH...    profiler traces, NCCL Inspector

Each measuring command ends in a report: the answer, why, how sure, what to try.
RUN is the folder that its last line names; `latest` is the newest. Then:

  read it again         scaling report RUN --open
  compare two           scaling compare RUN RUN
  try the remedy        scaling verify RUN
  other machines        scaling predict RUN topology=hgx_h100 world_sizes=[8,64]

`scaling help VERB` explains a verb, `scaling help all` lists every one.
Settings are key=value words; `scaling run --help` lists them.\
"""
"""What `scaling --help` prints: one screen of 80 columns and 24 lines."""
COMPLETION = 'Tab completion: eval "$(scaling -sc install=bash)"'
_BASH = """\
_scaling() {
    local words
    words=$(COMP_LINE="$COMP_LINE" scaling -sc query=bash 2>/dev/null)
    COMPREPLY=($words)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *[=/] ]] || compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -F _scaling scaling
"""


def help_text(verb: str | None = None) -> str:
    """The doors, the help of one verb, or of every verb for `all`. InputError for an unknown verb."""
    if verb is None:
        return DOORS
    if verb == "all":
        return "\n".join([*(lines(name) for name in VERBS), "", COMPLETION])
    return f"{help_of(_checked_verb(verb))}\n\nThe verb's page is docs/commands/{verb}.md."


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `scaling` command; returns the exit status."""
    tolerate_closed()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except ScalingError as error:
        warn(error)
        return error.exit_code
    except KeyboardInterrupt:
        warn("interrupted")
        return 3
    except (IsADirectoryError, NotADirectoryError) as error:  # in a run's folder that somebody else made
        warn(
            f"{error.filename2 or error.filename}: {error.strerror}; it is in the way of a file, move it away"
        )
        return InputError.exit_code
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            warn(f"{error.filename}: {error.strerror}; a shorter path is expected")
            return InputError.exit_code
        if error.filename is None and "No usable temporary directory" in str(error):
            warn(
                "no temporary folder can be written to; make room in /tmp, or set TMPDIR to a folder that can be"
            )
            return InputError.exit_code
        ours = error.errno == errno.ENOENT if error.filename else error.errno not in _WRITING
        if ours:
            raise
        # The error of a failed write has no file name.
        where = f"{error.filename}: " if error.filename else ""
        warn(f"{where}{error.strerror}")
        return ScalingError.exit_code
    return code


def _run(arguments: list[str]) -> int:
    """The exit status of a command line."""
    if not arguments:  # fail, so that a script with an empty variable does not pass
        print(help_text(), file=sys.stderr)
        return InputError.exit_code
    if arguments[0] in ("-h", "--help"):
        print(help_text())
        return 0
    if arguments[0] == "--version":
        from scaling.version import __version__

        print(__version__)
        return 0
    if arguments[0] in ("-sc", "--shell-completion"):
        return _complete(arguments)
    # Files that are written are never writable by others, whatever the shell's umask.
    os.umask(os.umask(0o022) | 0o002)
    if arguments[0] == "help":
        if len(arguments) > 2:
            words = len(arguments) - 1
            raise InputError(f"scaling help: one verb or `all` is expected, {words} words given")
        print(help_text(*arguments[1:]))
        return 0
    _require_readable(arguments)
    return _verb(arguments[0])(arguments[1:])


def _require_readable(arguments: list[str]) -> None:
    """InputError where the working directory is gone, or a name cannot be written into any file of ours."""
    try:
        words = [str(Path.cwd()), *arguments]
    except OSError as error:
        raise InputError(f"the working directory: {error.strerror}; change to one that is there") from error
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"{word}: the name is not UTF-8; rename it") from None


def _checked_verb(name: str) -> str:
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(VERBS)} is expected"
        raise InputError(f"{name}: no such command; {hint}")
    return name


def _complete(arguments: list[str]) -> int:
    """`-sc install=bash` prints code for the shell to evaluate; `-sc query=bash` the candidates for COMP_LINE."""
    if arguments[1:] == ["install=bash"]:
        print(_BASH, end="")
        return 0
    words = os.environ.get("COMP_LINE", "").split(" ")[1:]
    if len(words) <= 1:
        print(" ".join(v for v in VERBS if v.startswith(words[0] if words else "")))
    elif words[0] in VERBS and VERBS[words[0]].composed:
        from scaling.config.compose import candidates  # Hydra is slow to import

        print(" ".join(candidates(words[-1])))
    return 0


def _verb(name: str) -> Callable[[list[str]], int]:
    home = VERBS[_checked_verb(name)].home
    file = home or (f"{name}_" if keyword.iskeyword(name) else name)
    module = importlib.import_module(f"scaling.cli.verbs.{file}")
    return getattr(module, name if home else "main")  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
