# SPDX-License-Identifier: Apache-2.0
"""One writer at a time for a directory, across processes and threads.

The lock belongs to the process: the system drops it when the process dies, so there are no stale
locks. On Windows and on file systems without locks, writers are not
kept apart; readers are safe all the same, because directories are replaced whole.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gossamer.errors import ResourceError

if sys.platform != "win32":
    import fcntl


@contextmanager
def exclusive_lock(target: Path) -> Iterator[None]:
    """Hold `.<name>.lock` beside `target`, or refuse at once if someone else does."""
    if sys.platform == "win32":
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    descriptor = _acquire(path, target)
    try:
        yield
    finally:
        # Unlinked while still held: a waiter that opened the old file sees that it is gone.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, target: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ResourceError(
                f"{target}: another process is writing it now. Wait until it is done, or save"
                " under another name."
            ) from None
        except OSError:
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)
