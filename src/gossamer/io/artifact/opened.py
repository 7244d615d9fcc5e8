# SPDX-License-Identifier: Apache-2.0
"""An artifact opened for reading: every check that needs no tensor data has been made.

Order: size of the manifest, JSON, schema, names, list of files, sizes, tensor headers, agreement of
headers and manifest. `read` then verifies hashes; index invariants come after it, in `decode`.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gossamer.errors import ArtifactError
from gossamer.io.artifact.agreement import check_agreement
from gossamer.io.artifact.beside import (
    BESIDE_FILES,
    COMPANIONS,
    CONFIG_FILE,
    SIGNPOST_FILE,
    beside_limit,
)
from gossamer.io.artifact.manifest import Manifest
from gossamer.io.safe_files.directories import AnyPath, find_directory
from gossamer.io.safe_files.documents import parse_object
from gossamer.io.safe_files.manifests import MANIFEST_FILE, open_regular, read_manifest
from gossamer.io.safe_files.tensors import TensorHeader, check_hash, read_header, read_tensors

ATTEMPTS = 20
_RESTLESS = "is being replaced all the time; try again."
TENSOR_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class OpenArtifact:
    """Checked manifest and headers, and the open files they belong to."""

    path: Path
    manifest: Manifest
    files: dict[str, BinaryIO]
    headers: dict[str, TensorHeader]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files the manifest lists."""
        return sum(entry.size for entry in self.manifest.files.values())

    def read(self) -> dict[str, torch.Tensor]:
        """All stored arrays by key, once; the hashes of all files are verified."""
        arrays: dict[str, torch.Tensor] = {}
        for name, entry in self.manifest.files.items():
            if name in self.headers:
                file, where = self.files[name], str(self.path / name)
                arrays |= read_tensors(file, self.headers[name], where, entry.sha256)
            else:
                self.document(name)
        return arrays

    def document(self, name: str) -> bytes:
        """The verified bytes of a file that holds no tensors."""
        self.files[name].seek(0)
        raw = self.files[name].read(beside_limit(name) + 1)
        found = hashlib.sha256(raw).hexdigest()
        check_hash(found, self.manifest.files[name].sha256, str(self.path / name))
        return raw

    def config(self) -> dict[str, Any] | None:
        """The verified content of config.json, None if there is none."""
        if CONFIG_FILE not in self.files:
            return None
        return parse_object(self.document(CONFIG_FILE), str(self.path / CONFIG_FILE))


def find_artifact(path: AnyPath) -> tuple[Path, bool]:
    """What is at `path`, and whether it is a directory with a manifest.

    A file keeps the name it was given: behind a link of the hub's cache it has no ending.
    """
    if os.path.isfile(path):  # noqa: PTH113 - as it is spelled
        return Path(os.path.abspath(path)), False  # noqa: PTH100
    for _ in range(ATTEMPTS):
        found = find_directory(path)
        before = _identity(found)
        has_manifest = os.path.lexists(found / MANIFEST_FILE)
        if _still_there(path, found, before):
            return found, has_manifest
    raise ArtifactError(f"{path}: {_RESTLESS}")


@contextmanager
def open_artifact(path: AnyPath) -> Iterator[OpenArtifact]:
    """Open an artifact, or raise ArtifactError.

    A writer may replace the directory meanwhile. Files that are open stay the old ones; if the
    directory changed before all were open, we start again, so old and new are never mixed.
    """
    with ExitStack() as stack:
        for attempt in range(ATTEMPTS):
            folder = find_directory(path)
            before = _identity(folder)
            try:
                opened = _open(folder, stack)
                if _identity(folder) == before:
                    break
            except (ArtifactError, FileNotFoundError) as error:
                if _still_there(path, folder, before) or attempt == ATTEMPTS - 1:
                    if isinstance(error, ArtifactError):
                        raise
                    raise ArtifactError(f"{error.filename}: is missing.") from error
            stack.pop_all().close()
        else:
            raise ArtifactError(f"{path}: {_RESTLESS}")
        yield opened


def _open(folder: Path, stack: ExitStack) -> OpenArtifact:
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: expected a directory with {MANIFEST_FILE}.")
    manifest = Manifest.parse(read_manifest(folder), str(folder / MANIFEST_FILE))
    _check_files(folder, manifest)
    headers: dict[str, TensorHeader] = {}
    files = {
        name: stack.enter_context(open_regular(folder / name, entry.size))
        for name, entry in manifest.files.items()
    }
    for name, entry in manifest.files.items():
        if name.endswith(TENSOR_SUFFIX):
            headers[name] = read_header(files[name], entry.size, str(folder / name))
        elif entry.size > beside_limit(name):
            raise ArtifactError(f"{folder / name}: larger than {beside_limit(name)} bytes.")
    check_agreement(manifest, headers, str(folder))
    return OpenArtifact(folder, manifest, files, headers)


def _check_files(folder: Path, manifest: Manifest) -> None:
    wanted = set(manifest.files)
    reserved = wanted & {MANIFEST_FILE, *(COMPANIONS - BESIDE_FILES)}
    if reserved:
        raise ArtifactError(f"{folder}: the manifest may not list {sorted(reserved)}.")
    found = set()
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_file():
            raise ArtifactError(
                f"{folder}: {path.name!a} is a link, folder or device; an artifact holds regular"
                " files only. Copy the directory with links resolved."
            )
        found.add(path.name)
    may_be_there = wanted | {MANIFEST_FILE, SIGNPOST_FILE, *COMPANIONS}
    missing, extra = sorted(wanted - found), sorted(found - may_be_there)
    if missing or extra:
        raise ArtifactError(
            f"{folder}: the files differ from the manifest; missing {missing[:5]}, unexpected"
            f" {[ascii(name) for name in extra[:5]]}. Restore or remove them."
        )


def _still_there(path: AnyPath, folder: Path, before: object) -> bool:
    """Whether `folder`, unchanged, is what a reader of `path` finds now.

    The identity alone is not enough: what two renames set aside may be half removed by the time
    we first look at it, and the new directory is in place by then. And two looks between the
    renames see no directory alike, which says nothing about the one that comes.
    """
    return before is not None and _identity(folder) == before and find_directory(path) == folder


def _identity(folder: Path) -> tuple[int, int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
