# SPDX-License-Identifier: Apache-2.0
"""The schema of a checkpoint's `manifest.json`: which run, how far, and the hash of every file."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gossamer.errors import ArtifactError
from gossamer.io.artifact.manifest import FileEntry, FileName, checked_content, digest_of
from gossamer.io.safe_files.strict_json import canonical_json, pretty_json

FORMAT_NAME: Final = "gossamer-checkpoint"
FORMAT_VERSION: Final = 1
STATE_FILE: Final = "state.safetensors"


class CheckpointManifest(BaseModel):
    """Everything about a checkpoint but the bytes of its tensors.

    Attributes:
        producer: who wrote it.
        step: optimizer steps that were taken.
        ranks: processes that wrote it.
        run: what the run is: recipe, data, versions. Another run does not take it up.
        files: size and hash of every file.
        state: the tree of `state_tree.encode`; tensors by their name in `STATE_FILE`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["gossamer-checkpoint"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    producer: Annotated[str, Field(max_length=256)]
    step: Annotated[int, Field(ge=0, lt=2**63)]
    ranks: Annotated[int, Field(ge=1, le=2**20)] = 1
    run: dict[str, Any]
    files: dict[FileName, FileEntry]
    state: Any


def manifest_bytes(manifest: CheckpointManifest) -> bytes:
    """The file's content: the manifest and a digest of its canonical JSON."""
    content = manifest.model_dump(mode="json")
    return pretty_json({**content, "digest": digest_of(content)})


def parse_manifest(raw: bytes, where: str) -> CheckpointManifest:
    """The manifest behind `raw`, or ArtifactError. Order: size, JSON, version, digest, schema."""
    content = checked_content(
        raw, where, (FORMAT_NAME, FORMAT_VERSION), "checkpoint", "Upgrade gossamer."
    )
    try:
        return CheckpointManifest.model_validate_json(canonical_json(content))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(ascii(part)[:80].strip("'") for part in fault["loc"])
        raise ArtifactError(f"{where}: {place}: {ascii(fault['msg'][:200])[1:-1]}.") from error
