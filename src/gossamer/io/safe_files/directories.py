# SPDX-License-Identifier: Apache-2.0
"""Directories and small files that appear whole or not at all, with one writer at a time.

Start at `replace_directory`, which gives an empty folder to fill and puts it in place at the end.
"""

import ctypes
import errno
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gossamer.errors import ArtifactError, ResourceError

__all__ = [
    "SPARE_FACTOR",
    "AnyPath",
    "exclusive_lock",
    "find_directory",
    "replace_directory",
    "sync_directory",
    "whole_file",
    "write_whole",
]

if sys.platform != "win32":
    import fcntl

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
SPARE_FACTOR = 1.1

AnyPath = os.PathLike[str] | str


@contextmanager
def replace_directory(
    path: AnyPath, needed_bytes: int, check_replaceable: Callable[[Path], None]
) -> Iterator[Path]:
    """Give an empty folder to fill; when the block ends without error it becomes `path`.

    Args:
        path: the directory to create or replace; missing parents are created.
        needed_bytes: how much will be written; refused at once if the disk has not 1.1 times that.
        check_replaceable: raises if what is at `path` now must not be replaced.

    Raises:
        ResourceError: disk full, not writable, or another writer is at work. `path` is unchanged.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(target):
            _recover(target)
            check_replaceable(target)
            free, needed = shutil.disk_usage(target.parent).free, int(needed_bytes * SPARE_FACTOR)
            if needed > free:
                raise ResourceError(
                    f"{target}: not enough disk space; needed {needed} bytes (10 % spare included),"
                    f" free {free}. Nothing was written. Free some space or choose another folder."
                )
            folder = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex}")
            folder.mkdir()
            try:
                yield folder
                sync_directory(folder)
                _publish(folder, target)
                _sync_parent(target)
            finally:
                # After an exchange this is the old directory, after a failure the unfinished one.
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise _explain(error, target, needed_bytes) from error


@contextmanager
def whole_file(path: Path, mode: str = "xb", encoding: str | None = None) -> Iterator[Any]:
    """A file to write: it appears whole when the block ends without error, or not at all.

    What was there before stays until then, whenever the process is killed.
    """
    unfinished = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        with unfinished.open(mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that it is complete or absent."""
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise ResourceError(f"{path}: could not be written ({error.strerror}).") from error


def find_directory(path: AnyPath) -> Path:
    """The directory at `path`, or the complete one an interrupted replacement left beside it."""
    target = Path(os.path.realpath(path))
    # More than once: a writer may move the directory between the two looks.
    for _ in range(3):
        if target.exists():
            return target
        left = _leftovers(target, "old")
        if left:
            return left[0]
    raise ArtifactError(f"{target}: there is no such file or directory.")


def sync_directory(folder: Path) -> None:
    """Flush the entries of a directory, where the system lets us open one."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(folder: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        if target.exists():
            target.rmdir()
        folder.rename(target)
    elif not _exchange(folder, target):
        old = target.with_name(f"{target.name}.old-{uuid.uuid4().hex}")
        target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            old.rename(target)
            raise
        _sync_parent(target)
        shutil.rmtree(old, ignore_errors=True)


def _sync_parent(target: Path) -> None:
    try:
        sync_directory(target.parent)
    except OSError as error:
        raise ResourceError(
            f"{target}: was replaced, but its folder could not be flushed to disk"
            f" ({error.strerror}): the new one is in place and may be lost in a power cut. Check"
            " the disk and save again."
        ) from error


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories atomically; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    return renameat2 is not None and renameat2(*paths, _RENAME_EXCHANGE) == 0


def _recover(target: Path) -> None:
    """Undo what dead writers left; the lock says that they are dead."""
    for old in _leftovers(target, "old"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)
    for folder in _leftovers(target, "tmp"):
        shutil.rmtree(folder, ignore_errors=True)


def _leftovers(target: Path, kind: str) -> list[Path]:
    name = re.compile(re.escape(target.name) + rf"\.{kind}-[0-9a-f]{{32}}")
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(p for p in target.parent.iterdir() if name.fullmatch(p.name) and p.is_dir())
    return []


def _explain(error: OSError, target: Path, needed_bytes: int) -> ResourceError:
    try:
        free = f"{shutil.disk_usage(target.parent).free} bytes are free"
    except OSError:
        free = "the free space is not known"
    cause = f"cannot be written ({error.strerror or error})"
    if error.errno in _FULL:
        cause = "the disk, quota or file-size limit was reached"
    return ResourceError(
        f"{target}: {cause}; needed {needed_bytes} bytes, {free}. What was there before is"
        " unchanged. Free some space or choose another folder."
    )


@contextmanager
def exclusive_lock(target: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold `.<name>.lock` beside `target`.

    Args:
        target: a file or a folder, which need not be there.
        wait: until nobody else holds it; False refuses at once if someone does.
    """
    if sys.platform == "win32":
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    descriptor = _acquire(path, target, 0 if wait else fcntl.LOCK_NB)
    try:
        yield
    finally:
        # Unlinked while still held: a waiter that opened the old file sees that it is gone.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, target: Path, patience: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | patience)
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
