"""What can go wrong, by who has to act.

ScalingError            exit 1   nothing could be measured, or a bar that was asked for is not met
└── InputError          exit 2   the user's input: what, where, what would be accepted; nothing was created

What a file system says without anybody's fault (no room, no permission) is one line too (scaling.cli). Anything else
that escapes is a bug of this program and keeps its traceback.
"""

from __future__ import annotations


class ScalingError(Exception):
    """A failure with a one-line message for the person at the terminal."""

    exit_code = 1


class InputError(ScalingError):
    """Bad input. The message says what, where, and what would be accepted."""

    exit_code = 2
