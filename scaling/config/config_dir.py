"""A folder of configuration files of one's own, as `--config-dir DIR` names it."""

from __future__ import annotations

from pathlib import Path

from scaling import resources
from scaling.config.yaml_text import load_file
from scaling.errors import InputError

FLAGS = ("--config-dir", "-cd")


def named(arguments: list[str]) -> Path | None:
    """The folder that a command line in Hydra's grammar names."""
    for at, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in FLAGS and (equals or at + 1 < len(arguments)):
            return Path(value if equals else arguments[at + 1])
    return None


def require_readable(folder: Path) -> None:
    """InputError where a file of a group cannot be read, or has the name of one of conf/.

    Hydra would take the one of conf/, and not say so. Only files of the groups are looked at: DIR/config.yaml, some
    other program's say, cannot be asked for by any name.
    """
    ours = resources.folder("conf")
    for group in sorted(path for path in ours.iterdir() if path.is_dir()):
        for path in sorted((folder / group.name).glob("*.yaml")):
            load_file(path)
            known = group / path.name
            if known.is_file() and path.read_bytes() != known.read_bytes():
                raise InputError(
                    f"{path}: {path.parent.name}={path.stem} is one of those that come with the program, which would "
                    "be taken instead; a name of its own is expected"
                )
