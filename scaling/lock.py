"""One program at a time works on a run folder.

The lock is the kernel's (flock) on a file in the folder, so it ends with the program that holds it,
however that ends, and never has to be removed by hand. On NFS it holds between machines too where
the server keeps locks; a machine that dies keeps it until the server's lease runs out (NFSv4, about a minute
and a half), or until it is up again (NFSv3's lockd: removing the file by hand is all that helps). A file system
that keeps no locks is said and not refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator

from scaling.errors import InputError
from scaling.store import RunFolder


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder; InputError when another program does, or when nothing can be written there."""
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
            f"scaling: {folder.path}: its file system keeps no locks ({error.strerror}); start nothing else in it",
            file=sys.stderr,
        )
    try:
        yield
    finally:
        os.close(descriptor)
