# SPDX-License-Identifier: Apache-2.0
"""Files beside the weights, such as the tokenizer: carried along as bytes, never interpreted.

A closed list of names; nothing else of a directory goes along.
"""

import os
from collections.abc import Mapping

from gossamer.errors import InputError
from gossamer.io.artifact.manifest import BESIDE_FILES
from gossamer.io.artifact.opened import find_artifact, open_artifact
from gossamer.io.gguf.file import is_gguf
from gossamer.io.gguf.tokenizer import gguf_tokenizer_files
from gossamer.io.onnx.file import is_onnx
from gossamer.io.safe_files.limits import MAX_MANIFEST_BYTES
from gossamer.named_files import is_inside, read_inside

MAX_BESIDE_BYTES = MAX_MANIFEST_BYTES


def read_beside(path: os.PathLike[str] | str) -> dict[str, bytes]:
    """What belongs beside the weights at `path`, by file name.

    Args:
        path: an artifact, whose manifest verifies the files it lists; a Hugging Face directory; a
            gguf file, whose tokenizer becomes tokenizer.json; an ONNX file, whose folder has
            them; any other file has nothing beside it.
    """
    found, has_manifest = find_artifact(path)
    if is_onnx(found) and found.is_file():
        found = found.parent
    elif found.is_file():
        return gguf_tokenizer_files(found) if is_gguf(found) else {}
    verified: dict[str, bytes] = {}
    if has_manifest:
        with open_artifact(path) as artifact:
            listed = sorted(BESIDE_FILES & set(artifact.manifest.files))
            verified = {name: artifact.document(name) for name in listed}
            found = artifact.path
    others = sorted(BESIDE_FILES - set(verified))
    return verified | {
        name: read_inside(found, name, MAX_BESIDE_BYTES)
        for name in others
        if is_inside(found, name)
    }


def check_beside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same files, or InputError for a name that is not in the list or content too large."""
    for name, raw in files.items():
        if name not in BESIDE_FILES:
            raise InputError(
                f"beside: {ascii(name)[:80]} is not carried along; known:"
                f" {', '.join(sorted(BESIDE_FILES))}."
            )
        if not isinstance(raw, bytes) or len(raw) > MAX_BESIDE_BYTES:
            raise InputError(
                f"beside: {name} must be at most {MAX_BESIDE_BYTES} bytes, got"
                f" {len(raw) if isinstance(raw, bytes) else type(raw).__name__}."
            )
    return dict(files)
