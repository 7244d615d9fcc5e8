# SPDX-License-Identifier: Apache-2.0
"""Directories with a manifest, which lists their files and has a digest: artifacts, checkpoints.

`read_manifest` gives its bytes and `SignedData.parse` what they say, once version and digest are
right. A `FileEntry` is what is known of a file, `open_regular` opens one that is neither link nor
device, and `producer` says who writes.
"""

import hashlib
import os
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from gossamer.errors import ArtifactError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES, MAX_TENSOR_BYTES, listed
from gossamer.io.safe_files.documents import canonical_json, parse_json, pretty_json

__all__ = [
    "MANIFEST_FILE",
    "FileEntry",
    "Sha256",
    "SignedData",
    "open_regular",
    "producer",
    "read_manifest",
]

MANIFEST_FILE = "manifest.json"
_OPEN_FLAGS = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _OPEN_FLAGS |= getattr(os, _flag, 0)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(BaseModel):
    """One file beside the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: Annotated[int, Field(ge=0, le=MAX_TENSOR_BYTES)]
    sha256: Sha256


def digest_of(content: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything but the digest itself."""
    return hashlib.sha256(canonical_json(content)).hexdigest()


class SignedData(BaseModel):
    """A manifest: data that says its format and version, in a file with a digest of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    ADVICE: ClassVar[str] = "Upgrade gossamer."

    format: str
    version: int

    def to_bytes(self) -> bytes:
        """The file's content: the data and a digest of its canonical JSON."""
        content = self.model_dump(mode="json")
        return pretty_json({**content, "digest": digest_of(content)})

    @classmethod
    def parse(cls, raw: bytes, where: str = MANIFEST_FILE) -> Self:
        """The manifest behind `raw`, refused with all faults of its schema at once.

        Order: size, JSON, format and version, digest, schema, names.
        """
        name, known = (cls.model_fields[field].default for field in ("format", "version"))
        kind = name.removeprefix("gossamer-")
        if not raw.isascii():
            raise ArtifactError(f"{where}: has bytes that are not ASCII; the file is damaged.")
        content = parse_json(raw, where)
        if not isinstance(content, dict) or content.get("format") != name:
            raise ArtifactError(
                f"{where}: is not the manifest of a gossamer {kind} (no format {name!r})."
            )
        version = content.get("version")
        if version != known or isinstance(version, bool):
            raise ArtifactError(
                f"{where}: {kind} version {ascii(version)[:40]} is not known; this gossamer reads"
                f" version {known}. {cls.ADVICE}"
            )
        if content.pop("digest", None) != digest_of(content):
            raise ArtifactError(
                f"{where}: its content does not match its own digest; the file was damaged or"
                " edited."
            )
        try:
            # From JSON and not from the dictionary: strict mode then accepts arrays for tuples.
            return cls.model_validate_json(canonical_json(content))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            lines = []
            for fault in faults:
                place = ".".join(ascii(part)[:80].strip("'") for part in fault["loc"])
                lines.append(f"{place}: {ascii(fault['msg'][:300])[1:-1]}")
            plural = "fault" if len(faults) == 1 else "faults"
            raise ArtifactError(f"{where}: {len(faults)} {plural}:{listed(lines)}") from error


def open_regular(path: Path, size: int | None) -> BinaryIO:
    """Open a regular file of `size` bytes, never a link or device; None takes any size."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be opened ({error.strerror}).") from error
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (size is not None and status.st_size != size):
        file.close()
        raise ArtifactError(
            f"{path}: expected a regular file of {size} bytes, found {status.st_size} bytes; it was"
            " truncated or replaced."
        )
    return file


def read_manifest(folder: Path) -> bytes:
    """The bytes of the manifest in `folder`, bounded."""
    path = folder / MANIFEST_FILE
    with open_regular(path, None) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path}: {size} bytes; at most {MAX_MANIFEST_BYTES} are allowed.")
        return file.read(MAX_MANIFEST_BYTES)


def producer() -> str:
    """Name and version of this gossamer, for manifests."""
    try:
        return f"gossamer {version('gossamer')}"
    except PackageNotFoundError:
        return "gossamer (not installed)"
