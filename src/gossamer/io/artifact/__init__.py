# SPDX-License-Identifier: Apache-2.0
"""Artifacts: a directory with a manifest, canonical arrays and a card, complete or absent.

Start at `save` and `load_artifact`; `open_artifact` gives the checked manifest and the open files.
The schema is `manifest.py`. Checkpoints of training have a manifest of the same kind, and use its
parts (`checked_content`, `digest_of`, `FileEntry`, `open_regular`, `read_manifest`). See
`io/README.md`.
"""

from gossamer.io.artifact.inventory import unwrap
from gossamer.io.artifact.manifest import (
    BESIDE_FILES,
    CARD_FILE,
    CONFIG_FILE,
    MANIFEST_FILE,
    MAX_BESIDE_BYTES,
    FileEntry,
    FileName,
    checked_content,
    digest_of,
)
from gossamer.io.artifact.opened import (
    check_destination,
    check_file_destination,
    check_replaceable,
    find_artifact,
    open_artifact,
    open_regular,
    read_manifest,
)
from gossamer.io.artifact.reader import artifact_skeleton, fill, load_artifact
from gossamer.io.artifact.writer import producer, save, save_compressed_tensors

__all__ = [
    "BESIDE_FILES",
    "CARD_FILE",
    "CONFIG_FILE",
    "MANIFEST_FILE",
    "MAX_BESIDE_BYTES",
    "FileEntry",
    "FileName",
    "artifact_skeleton",
    "check_destination",
    "check_file_destination",
    "check_replaceable",
    "checked_content",
    "digest_of",
    "fill",
    "find_artifact",
    "load_artifact",
    "open_artifact",
    "open_regular",
    "producer",
    "read_manifest",
    "save",
    "save_compressed_tensors",
    "unwrap",
]
