"""Run one of Slurm's commands, with a time limit; ask again where the controller is busy."""

from __future__ import annotations

import re
import subprocess
import time

from scaling.errors import InputError, ScalingError

ASK_S = 60
"""Time limit of a command: a busy controller can keep it waiting (Slurm's own MessageTimeout is 10 s)."""
AGAIN_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Pauses between attempts, so that one missing answer does not end a launch of days."""
_BUSY = re.compile(r"timed out|unable to contact|connect|zero bytes|standby|temporarily", re.IGNORECASE)
"""Communication errors as Slurm's commands print them (slurm/slurm_errno.h)."""


def run(
    *command: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command once, with `stdin` on its standard input.

    InputError where it is not installed, ScalingError where it gives no answer in time.
    """
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=ASK_S, check=False, env=env
        )
    except FileNotFoundError as error:
        raise InputError(f"{command[0]}: not found; run this on a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise ScalingError(f"{command[0]}: no answer from Slurm within {ASK_S} s") from error


def answer(*command: str, again_s: tuple[float, ...] = AGAIN_S) -> str:
    """What a command prints. A busy controller is asked again after each pause; ScalingError when all attempts fail."""
    for pause in (*again_s, None):
        try:
            done = run(*command)
        except (InputError, OSError) as error:
            raise ScalingError(str(error)) from error
        except ScalingError as error:
            failed = error
        else:
            if not done.returncode:
                return done.stdout
            failed = ScalingError(f"{command[0]}: {done.stderr.strip()}")
            if not _BUSY.search(done.stderr):
                raise failed
        if pause is not None:
            time.sleep(pause)
    raise failed
