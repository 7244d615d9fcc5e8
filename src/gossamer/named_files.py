# SPDX-License-Identifier: Apache-2.0
"""The one door to files that others may have made: what the user named is read, nothing else.

A file that the user names is read as named. In a directory that the user names, a file may be a
link only to another file of that directory, or, in the cache of the Hugging Face hub
(`models--X/snapshots/<revision>`), to one of its `blobs`. Any other link is refused: it would carry
a file that nobody named into an output. Folders, pipes and devices in the place of a file are
refused before they are opened, so nothing hangs.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gossamer.errors import ArtifactError, GossamerError

_HUB_PREFIXES = ("models--", "datasets--", "spaces--")
_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = _FLAGS | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
# Windows opens files by whole paths only.
_BY_FOLDER = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
Fault = type[GossamerError]


def open_named(path: os.PathLike[str] | str, error: Fault = ArtifactError) -> BinaryIO:
    """The regular file that the user named, links followed; the caller closes it.

    Raises:
        error: there is no such file, it cannot be opened, or it is a folder, pipe or device.
    """
    where = str(path)
    with _explained(where, f"{where}: there is no such file.", error):
        return _open(path, where, error, links=True)


def read_named(path: os.PathLike[str] | str, max_bytes: int, error: Fault = ArtifactError) -> bytes:
    """The bytes of a file that the user named; `error` if it has more than `max_bytes`."""
    with open_named(path, error) as file:
        return read_at_most(file, max_bytes, str(path), error)


def open_inside(
    folder: os.PathLike[str] | str, name: str, error: Fault = ArtifactError
) -> BinaryIO:
    """The regular file `name` in a directory that the user named; the caller closes it.

    What was checked is what is opened: after the links are resolved, every step from the directory
    down is taken without following any.

    Raises:
        error: it is missing, cannot be opened, is no regular file, or is a link that leads out.
    """
    root = Path(os.path.realpath(folder))
    place = root / name
    relative = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or relative.is_absolute() or ".." in relative.parts:
        raise error(f"{root}: {name[:200]!a} names no file in this directory.")
    real = Path(os.path.realpath(place))
    home = next((each for each in (root, *_blobs_of(root)) if each in real.parents), None)
    if home is None:
        raise error(
            f"{place}: is a link to {real}, which lies outside of the directory that was named."
            " Links may stay in it, or lead to the blobs of the hub cache it belongs to. If you"
            " trust the link, put the file itself in its place: cp -L."
        )
    with _explained(str(place), f"{root}: {name!a} is missing.", error):
        return _open_below(home, real.relative_to(home).parts, str(place), error)


def read_inside(folder: os.PathLike[str] | str, name: str, max_bytes: int) -> bytes:
    """The bytes of a file of a named directory; ArtifactError if there are more than allowed."""
    with open_inside(folder, name) as file:
        return read_at_most(file, max_bytes, str(Path(folder) / name))


def is_inside(folder: os.PathLike[str] | str, name: str) -> bool:
    """Whether a directory has an entry of this name; it may turn out to be no file."""
    return os.path.lexists(Path(folder) / name)


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_at_most(file: BinaryIO, max_bytes: int, where: str, error: Fault = ArtifactError) -> bytes:
    """What an open file holds; `error` if it has more than `max_bytes`."""
    # Python reserves what it is asked to read, so it is asked for what is there.
    size = size_of(file)
    raw = file.read(size + 1) if size <= max_bytes else b""
    if max(size, len(raw)) > max_bytes:
        raise error(f"{where}: larger than {max_bytes} bytes.")
    return raw


def _blobs_of(root: Path) -> Iterable[Path]:
    """Where the hub's cache keeps the files of the snapshot that `root` is or lies in."""
    for folder in (root, *root.parents):
        hub = folder.parent.parent
        if folder.parent.name == "snapshots" and hub.name.startswith(_HUB_PREFIXES):
            yield hub / "blobs"
            return


def _open_below(home: Path, parts: tuple[str, ...], where: str, error: Fault) -> BinaryIO:
    if not _BY_FOLDER:
        return _open(home.joinpath(*parts), where, error)
    folder = os.open(home, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return _open(parts[-1], where, error, folder=folder)
    finally:
        os.close(folder)


def _open(
    path: os.PathLike[str] | str,
    where: str,
    error: Fault,
    *,
    links: bool = False,
    folder: int | None = None,
) -> BinaryIO:
    """The regular file at `path`, in an open `folder` if there is one; `links`: are followed."""
    _expect_file(os.stat(path, dir_fd=folder, follow_symlinks=links), where, error)
    descriptor = os.open(path, _FLAGS if links else _FLAGS | _NO_LINK, dir_fd=folder)
    try:
        # Again, on what was opened: the name may have been given to something else meanwhile.
        _expect_file(os.fstat(descriptor), where, error)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _expect_file(status: os.stat_result, where: str, error: Fault) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for check, name in _KINDS if check(status.st_mode)), "something else")
        raise error(f"{where}: is {kind}, no regular file. Put the file itself there.")


@contextmanager
def _explained(where: str, missing: str, error: Fault) -> Iterator[None]:
    """What the system says of a file that cannot be opened, as `error`."""
    try:
        yield
    except FileNotFoundError as fault:
        raise error(missing) from fault
    except (OSError, ValueError) as fault:
        if isinstance(fault, GossamerError):
            raise
        reason = (isinstance(fault, OSError) and fault.strerror) or fault
        raise error(f"{where}: cannot be opened ({reason}).") from fault
