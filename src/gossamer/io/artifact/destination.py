# SPDX-License-Identifier: Apache-2.0
"""Whether something can be written, asked before hours of work go into it."""

import os
import uuid
from pathlib import Path

from gossamer.errors import ResourceError
from gossamer.io.artifact.opened import check_replaceable

_ADVICE = "Nothing was done. Choose another path, or change that."


def check_destination(target: Path) -> None:
    """Raise unless an artifact can be written to `target`: new, or in place of an older one.

    Raises:
        ArtifactError: something that is no artifact of ours lies there.
        ResourceError: its folder cannot be made or written.
    """
    _check_parents(target)
    check_replaceable(target)


def check_file_destination(target: Path, *, makes_parents: bool = True) -> None:
    """Raise ResourceError unless a file can be written to `target`.

    Args:
        target: the file, new or old.
        makes_parents: whether its writer makes the folders that are missing.
    """
    if target.is_dir():
        raise ResourceError(f"{target}: is a folder; expected the name of a file. {_ADVICE}")
    if not makes_parents and not os.path.lexists(target.parent):
        raise ResourceError(
            f"{target}: cannot be written: there is no folder {target.parent}. Nothing was done."
            " Make it, or choose another path."
        )
    _check_parents(target)


def _check_parents(target: Path) -> None:
    """Missing folders are made later; the nearest one that is there must take something new."""
    folder = Path(os.path.realpath(target)).parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
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
