# SPDX-License-Identifier: Apache-2.0
"""Whether something can be written to a path: asked before hours of work go into it.

`check_destination` asks for an artifact, `check_file_destination` for a file. `check_replaceable`
asks only whether what lies there may go: an artifact may, anything else stays.
"""

import os
import uuid
from pathlib import Path

from gossamer.errors import ArtifactError, ResourceError
from gossamer.io.artifact.beside import CARD_FILE, SIGNPOST_FILE
from gossamer.io.artifact.manifest import Manifest
from gossamer.io.safe_files.manifests import MANIFEST_FILE, read_manifest

__all__ = [
    "check_destination",
    "check_file_destination",
    "check_replaceable",
]

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


def check_replaceable(target: Path) -> None:
    """Raise ArtifactError if saving to `target` would delete anything that save did not write."""
    if not os.path.lexists(target):
        return
    advice = "It was left alone. Choose another path, or remove it yourself."
    if not target.is_dir():
        raise ArtifactError(f"{target}: exists and is not a directory. {advice}")
    found = {entry.name for entry in target.iterdir()}
    if not found:
        return
    if MANIFEST_FILE not in found:
        raise ArtifactError(f"{target}: exists and is not a gossamer artifact. {advice}")
    try:
        manifest = Manifest.parse(read_manifest(target), str(target / MANIFEST_FILE))
    except (ArtifactError, FileNotFoundError) as error:
        raise ArtifactError(f"{error} {advice}") from error
    foreign = sorted(found - {MANIFEST_FILE, CARD_FILE, SIGNPOST_FILE, *manifest.files})
    if foreign:
        raise ArtifactError(
            f"{target}: holds {foreign[0]!a}, which is not part of the artifact. {advice}"
        )


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
