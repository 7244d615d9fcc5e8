# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: folders `step_<n>` that are complete or do not exist.

Written under a temporary name, every file flushed and hashed, the manifest last, then renamed
(`io/safe_files/directories`). Old ones go only after the new one is in place, never the newest two.
There is no `latest` link: the reader takes the highest complete step, and says so if a newer one is
damaged.
"""

import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.checks import FileName
from gossamer.io.safe_files.directories import replace_directory, sync_directory
from gossamer.io.safe_files.manifests import (
    MANIFEST_FILE,
    FileEntry,
    SignedData,
    open_regular,
    producer,
    read_manifest,
)
from gossamer.io.safe_files.on_disk import map_tensors
from gossamer.io.safe_files.tensors import (
    header_bytes,
    read_header,
    read_tensors,
    write_file,
)
from gossamer.training.checkpoint.state_tree import decode, encode

STATE_FILE = "state.safetensors"
MIN_KEPT = 2
_STEP = re.compile(r"step_(\d{8,})")
_LEFTOVER = re.compile(r"step_\d{8,}\.tmp-[0-9a-f]{32}|\.step_\d{8,}\.lock")


class CheckpointManifest(SignedData):
    """Everything about a checkpoint but the bytes of its tensors.

    Attributes:
        producer: who wrote it.
        step: optimizer steps that were taken.
        ranks: processes that wrote it.
        run: what the run is: recipe, data, versions. Another run does not take it up.
        files: size and hash of every file.
        state: the tree of `state_tree.encode`; tensors by their name in `STATE_FILE`.
    """

    format: Literal["gossamer-checkpoint"] = "gossamer-checkpoint"
    version: Literal[1] = 1
    producer: Annotated[str, Field(max_length=256)]
    step: Annotated[int, Field(ge=0, lt=2**63)]
    ranks: Annotated[int, Field(ge=1, le=2**20)] = 1
    run: dict[str, Any]
    files: dict[FileName, FileEntry]
    state: Any


@dataclass(frozen=True)
class Snapshot:
    """Training state, ready to be written.

    Attributes:
        step: optimizer steps taken.
        run: what the run is, as JSON data.
        plain: the state as JSON data.
        tensors: its tensors by name.
    """

    step: int
    run: Mapping[str, Any]
    plain: Any
    tensors: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, step: int, run: Mapping[str, Any], state: Any, *, copy: bool = False) -> "Snapshot":
        """A snapshot of `state`; with `copy` training may change its tensors at once."""
        plain, tensors = encode(state, copy=copy)
        return cls(step, run, plain, tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors and their header."""
        payload = sum(tensor.nbytes for tensor in self.tensors.values())
        return payload + len(header_bytes(self.tensors))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified; `sha256` is that of its tensors' file."""

    path: Path
    step: int
    run: Mapping[str, Any]
    state: Any
    sha256: str = ""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: created when the first one is written.
        keep: how many of the newest stay; at least two, whatever it says.
    """

    def __init__(self, folder: Path, keep: int = MIN_KEPT) -> None:
        if keep < MIN_KEPT:
            raise InputError(f"checkpoints: keep must be at least {MIN_KEPT}, got {keep}.")
        self.folder = folder
        self._keep = keep

    def write(self, snapshot: Snapshot) -> Path:
        """Write one checkpoint; it is on disk when this returns, and old ones are removed.

        Raises:
            ResourceError: with needed and free bytes; what was there before is unchanged.
        """
        target = self._path(snapshot.step)
        # State that is no tensor is small, but it must not be what fills the disk.
        needed = snapshot.num_bytes + 2 * len(f"{snapshot.plain}{snapshot.run}")
        with replace_directory(target, needed, _check_is_checkpoint) as folder:
            manifest = CheckpointManifest(
                producer=producer(),
                step=snapshot.step,
                run=dict(snapshot.run),
                files={STATE_FILE: write_file(folder / STATE_FILE, snapshot.tensors)},
                state=snapshot.plain,
            )
            raw = manifest.to_bytes()
            if len(raw) > MAX_MANIFEST_BYTES:
                raise InputError(
                    f"{target}: {len(raw)} bytes of state are no tensors; at most"
                    f" {MAX_MANIFEST_BYTES} can be read back. Keep large state in tensors."
                )
            write_file(folder / MANIFEST_FILE, raw)
        self._remove_old()
        return target

    def _path(self, step: int) -> Path:
        return self.folder / _folder_name(step)

    def steps(self) -> list[int]:
        """Steps of which there is a folder, ascending; it may be damaged."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in found if match is not None)

    def newest(self, notice: Callable[[str], None], *, mapped: bool = False) -> Checkpoint | None:
        """The newest complete checkpoint, every hash verified; None if there is no folder at all.

        Args:
            notice: told of each newer one that is refused.
            mapped: large tensors stay in the file, see `read_checkpoint`.

        Raises:
            ArtifactError: there are checkpoints, and all of them are damaged.
        """
        refused = []
        for step in reversed(self.steps()):
            try:
                checkpoint = read_checkpoint(self._path(step), mapped=mapped)
            except ArtifactError as error:
                refused.append(f"{error}")
                continue
            for text in refused:
                notice(f"{text} Taking the checkpoint of step {step} instead.")
            return checkpoint
        if refused:
            raise ArtifactError(
                f"{self.folder}: every checkpoint is damaged. {' '.join(refused)} Delete the folder"
                " to start anew."
            )
        return None

    def remove_leftovers(self) -> None:
        """Take away what killed writers left; only where no other writer can be at work."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if _LEFTOVER.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        complete = [step for step in self.steps() if self._looks_complete(step)]
        if len(complete) <= self._keep:
            return
        oldest_kept = complete[-self._keep]
        for step in self.steps():
            if step < oldest_kept:
                path = self._path(step)
                # Renamed first: a folder that is half deleted must not look like a checkpoint.
                doomed = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        sync_directory(self.folder)

    def _looks_complete(self, step: int) -> bool:
        try:
            _open_manifest(self._path(step))
        except ArtifactError:
            return False
        return True


class CheckpointWriter:
    """Writes snapshots, at once or in a thread of its own while training goes on.

    Tensors are then copied before `submit` returns, on the CPU too; the folder gets its name only
    when all of it is on disk. One write at a time: a second one waits for the first.

    Args:
        store: where they go.
        asynchronous: whether `submit` returns before the checkpoint is on disk.
    """

    def __init__(self, store: CheckpointStore, *, asynchronous: bool = False) -> None:
        self.store = store
        self.copies = asynchronous
        self._pool = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._pending: Future[Path] | None = None

    def submit(self, snapshot: Snapshot) -> Path | None:
        """Write a snapshot; the folder, or None while it is being written.

        A failure of the write before is raised here.
        """
        self.wait()
        if self._pool is None:
            return self.store.write(snapshot)
        self._pending = self._pool.submit(self.store.write, snapshot)
        return None

    def wait(self) -> None:
        """Return when nothing is being written; raises what the write raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def read_checkpoint(path: Path, *, mapped: bool = False) -> Checkpoint:
    """The checkpoint in a folder; nothing is returned before every hash was verified.

    Args:
        path: the folder.
        mapped: large tensors are left in the file and read where they are looked at: tables that
            no process could hold.
    """
    manifest = _open_manifest(path)
    where = str(path / STATE_FILE)
    entry = manifest.files[STATE_FILE]
    with open_regular(path / STATE_FILE, entry.size) as file:
        header = read_header(file, entry.size, where)
        tensors = read_tensors(file, header, where, entry.sha256, mapped=mapped)
    state = decode(manifest.state, tensors, str(path / MANIFEST_FILE))
    return Checkpoint(path, manifest.step, manifest.run, state, entry.sha256)


def large_tensors(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    """The large tensors of a checkpoint that another process has verified, left in its file.

    None of them where this host does not see that checkpoint.

    Args:
        path: the folder.
        sha256: of its tensors, as the process that verified them says.
    """
    try:
        entry = _open_manifest(path).files[STATE_FILE]
        if entry.sha256 != sha256:
            return {}
        with open_regular(path / STATE_FILE, entry.size) as file:
            header = read_header(file, entry.size, str(path / STATE_FILE))
            return map_tensors(file, len(header.raw), header.tensors)
    except (ArtifactError, OSError):
        return {}


def _folder_name(step: int) -> str:
    return f"step_{step:08d}"


def _open_manifest(path: Path) -> CheckpointManifest:
    """The manifest, checked against the names and sizes of the files beside it."""
    where = str(path / MANIFEST_FILE)
    try:
        manifest = CheckpointManifest.parse(read_manifest(path), where)
        if set(manifest.files) != {STATE_FILE}:
            raise ArtifactError(f"{where}: must list {STATE_FILE} and nothing else.")
        if path.name != _folder_name(manifest.step):
            raise ArtifactError(f"{where}: is of step {manifest.step}; the folder was renamed.")
        open_regular(path / STATE_FILE, manifest.files[STATE_FILE].size).close()
    except FileNotFoundError as error:
        raise ArtifactError(f"{error.filename}: is missing; the checkpoint is damaged.") from error
    return manifest


def _check_is_checkpoint(target: Path) -> None:
    """A run that was resumed writes the same step again; anything else is left alone."""
    if target.exists():
        extra = {path.name for path in target.iterdir()} - {MANIFEST_FILE, STATE_FILE}
        if extra:
            raise ArtifactError(
                f"{target}: holds {sorted(extra)[0]!a}, which is no part of a checkpoint. It was"
                " left alone; remove it yourself."
            )
