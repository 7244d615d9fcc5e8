# SPDX-License-Identifier: Apache-2.0
"""Whether something can be written, asked before hours of work go into it."""

import os
import uuid
from pathlib import Path

from gossamer.errors import ResourceError
from gossamer.io.opened import check_replaceable

_ADVICE = "Nothing was done. Choose another path, or change that."


def check_destination(target: Path) -> None:
    """Raise unless an artifact can be written to `target`: new, or in place of an older one.

    Parents that are missing are made when they are needed; the nearest one that is there must be a
    folder in which something can be made.

    Raises:
        ArtifactError: something that is no artifact of ours lies there.
        ResourceError: its folder cannot be made or written.
    """
    folder = Path(os.path.realpath(target)).parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    _check_writable(folder, target)
    check_replaceable(target)


def check_file_destination(target: Path) -> None:
    """Raise ResourceError unless a file can be written to `target`; its folder must be there."""
    if target.is_dir():
        raise ResourceError(f"{target}: is a folder; expected the name of a file. {_ADVICE}")
    folder = Path(os.path.realpath(target)).parent
    if not os.path.lexists(folder):
        raise ResourceError(
            f"{target}: cannot be written: there is no folder {folder}. Make it, or choose another"
            " path. Nothing was done."
        )
    _check_writable(folder, target)


def _check_writable(folder: Path, target: Path) -> None:
    if not folder.is_dir():
        raise ResourceError(
            f"{target}: cannot be written: {folder} is a file, not a folder. {_ADVICE}"
        )
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise ResourceError(
            f"{target}: cannot be written: nothing can be made in {folder}"
            f" ({error.strerror or error}). {_ADVICE}"
        ) from error
