"""Folders that a command line names: whether they can be had, and making them."""

from __future__ import annotations

import os
from pathlib import Path

from scaling.errors import InputError


def check_writable(path: Path, asked: str) -> None:
    """InputError when a folder could not be made there, or written to; `asked`: what named it. Creates nothing."""
    parent = next(p for p in [path, *path.absolute().parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{asked}: {parent} cannot be written to; name a folder that can")


def make_folder(path: Path, asked: str) -> None:
    """The folder with those above it, where it is not there yet; InputError when it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{asked}: cannot be made ({error.strerror}); name a folder that can") from error
