"""A folder of configuration files of one's own, as `--config-dir DIR` names it."""

from __future__ import annotations

from pathlib import Path

from scaling import resources
from scaling.errors import InputError

FLAGS = ("--config-dir", "-cd")


def named(arguments: list[str]) -> Path | None:
    """The folder that a command line in Hydra's grammar names."""
    for at, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in FLAGS and (equals or at + 1 < len(arguments)):
            return Path(value if equals else arguments[at + 1])
    return None


def require_own_names(folder: Path) -> None:
    """InputError where a file has the name of one of conf/: Hydra would take that one, and not say so.

    Of the groups alone: DIR/config.yaml, some other program's say, cannot be asked for by any name.
    """
    ours = resources.folder("conf")
    for known in sorted(ours.glob("*/*.yaml")):
        path = folder / known.relative_to(ours)
        if path.is_file() and path.read_bytes() != known.read_bytes():
            raise InputError(
                f"{path}: {path.parent.name}={path.stem} is one of those that come with the program, which would be "
                "taken instead; a name of its own is expected"
            )
