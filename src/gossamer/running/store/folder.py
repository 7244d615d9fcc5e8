# SPDX-License-Identifier: Apache-2.0
"""The folder of packed engines: of this user alone, bounded, and never the reason for a failure."""

import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossamer.running.store.identity import Identity
from gossamer.running.store.parts import Parts, PartsFault, read_parts, write_parts
from gossamer.settings import cache_bytes, cache_dir

_SUFFIX = ".packed"
_UNFINISHED = ".unfinished"
# What a killed process left is removed after so many seconds.
_ABANDONED = 3600
_NO_LINK = 0  # nor is a pipe waited for
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"):
    _NO_LINK |= getattr(os, _name, 0)
Fault = PartsFault


class EngineStore:
    """Packed engines under `GOSSAMER_CACHE`, at most `GOSSAMER_CACHE_SIZE` of them.

    Args:
        say: gets one line where something is not used or not kept.
    """

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self._folder = cache_dir() / "engines"
        self._most = cache_bytes()
        self._say = say

    def find(self, identity: Identity) -> Parts | None:
        """The parts that were kept for an identity; None if there are none to be trusted."""
        if not self._most:
            return None
        path = self._path(identity)
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as reason:
            self.refuse(identity, str(reason))
            return None
        try:
            self._expect_own(self._folder)
            with os.fdopen(os.open(path, os.O_RDONLY | _NO_LINK), "rb") as file:
                _expect_private(os.fstat(file.fileno()), "the file")
                parts = read_parts(file)
            if parts.told.get("identity") != identity.told():
                raise PartsFault("it is that of another model")
            with suppress(OSError):
                os.utime(path)  # the one that was used longest ago goes first
        except (PartsFault, OSError, ValueError, TypeError, KeyError) as reason:
            self.refuse(identity, str(reason))
            return None
        return parts

    def refuse(self, identity: Identity, reason: str) -> None:
        """Say why what was found is not used, and remove it if it is ours."""
        self._say(f"a packed engine in the cache is not used: {reason}")
        with suppress(OSError, PartsFault):
            self._expect_own(self._folder)
            self._path(identity).unlink()

    def keep(self, identity: Identity, parts: Parts) -> None:
        """Keep parts for the next start; whole or not at all."""
        size = sum(array.nbytes for array in parts.arrays)
        unfinished = None
        try:
            if not self._most:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._expect_own(self._folder)
            room = min(self._most, _free_bytes(self._folder) // 2 + self._evict(None))
            if size > room:
                raise PartsFault(f"it has {size >> 20} MiB, and there is room for {room >> 20}")
            self._evict(room - size)
            number, name = tempfile.mkstemp(_UNFINISHED, dir=self._folder)
            unfinished = Path(name)
            with os.fdopen(number, "w+b") as file:
                write_parts(file, Parts({"identity": identity.told(), **parts.told}, parts.arrays))
            unfinished.replace(self._path(identity))
        except (PartsFault, OSError, ValueError, TypeError) as reason:
            self._say(f"the packed engine is not kept in the cache: {reason}")
            if unfinished is not None:
                with suppress(OSError):
                    unfinished.unlink()

    def _path(self, identity: Identity) -> Path:
        return self._folder / f"{identity.key}{_SUFFIX}"

    def _expect_own(self, folder: Path) -> None:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise PartsFault(f"{folder} is no folder")
        _expect_private(status, str(folder))

    def _evict(self, most: int | None) -> int:
        """Remove engines, those used longest ago first, until the rest has at most `most` bytes.

        Args:
            most: None removes nothing.

        Returns:
            Bytes that are left.
        """
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                status = path.stat(follow_symlinks=False)
                if path.suffix == _SUFFIX:
                    found.append((status.st_mtime, status.st_size, path))
                elif path.suffix == _UNFINISHED and time.time() - status.st_mtime > _ABANDONED:
                    path.unlink()
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if most is None or held <= most:
                break
            with suppress(OSError):
                path.unlink()
                held -= size
        return held


def _expect_private(status: os.stat_result, where: str) -> None:
    """Of this user, and nobody else may write it."""
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PartsFault(f"{where} belongs to another user")
    if status.st_mode & 0o022 and os.name == "posix":
        raise PartsFault(f"others may write {where}")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise PartsFault(f"{where} is no regular file")


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder) if hasattr(os, "statvfs") else None
    return 1 << 62 if found is None else found.f_bavail * found.f_frsize
