"""Which commit of the user's code is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

TIMEOUT_S = 5
_DESCRIBE = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def commit(folder: Path) -> str:
    """`<hash>`, or `<hash>-dirty` where tracked files were changed since; empty outside a repository or without git."""
    try:
        done = subprocess.run(
            _DESCRIBE, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
