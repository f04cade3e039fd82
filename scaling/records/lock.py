"""One program at a time works on a run folder.

The kernel locks a file in the folder (flock), so the lock ends with the program that holds it, however that ends, and
never has to be removed by hand. On NFS it holds between machines too where the server keeps locks. A machine that dies
then keeps it until the server's lease runs out (NFSv4, about a minute and a half), or until the machine is up again
(NFSv3's lockd, where only removing the file by hand helps). On a file system without locks a line says so, and the
program goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator

from scaling.errors import InputError
from scaling.plain import message
from scaling.records.paths import RunFolder


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder; InputError where another program holds it, or where nothing can be written there."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(
            f"{folder.path}: cannot be written to ({error.strerror}); make it writable"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(descriptor)
            raise InputError(
                f"{folder.path}: another `scaling run` is working in it; wait for it to end, or name another folder "
                f"(if its machine died: rm {folder.lock})"
            ) from error
        print(
            message(
                f"scaling: {folder.path}: its file system keeps no locks ({error.strerror}); "
                "start no other program in this folder"
            ),
            file=sys.stderr,
        )
    try:
        yield
    finally:
        os.close(descriptor)
