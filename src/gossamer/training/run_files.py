# SPDX-License-Identifier: Apache-2.0
"""Where a run lives on disk, and what it writes down while it goes: folders and metrics.

`RunFolder` names and guards the folders. A loop gives its records to sinks: `MetricsFile` always,
`TensorBoard` on request.

Where a run lives: `OUT` is the artifact at the end, `OUT.run` beside it everything before.

OUT.run/checkpoints/step_00000500/   complete or absent
OUT.run/metrics.jsonl                one line per event
OUT.run/report.html                  curves, once it is done
"""

import copy
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.io.artifact.destination import check_replaceable
from gossamer.io.safe_files.directories import SPARE_FACTOR, exclusive_lock
from gossamer.io.safe_files.documents import parse_object
from gossamer.named_files import read_named

__all__ = ["MetricsFile", "RunFolder", "Sink", "TensorBoard", "read_metrics"]


class RunFolder:
    """The folders of one run.

    Args:
        target: where the artifact goes.
    """

    def __init__(self, target: Path) -> None:
        self.target = Path(os.path.realpath(target))
        self.path = self.target.with_name(f"{self.target.name}.run")
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.report = self.path / "report.html"

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Hold the folders for this process; refused before any work if they cannot be written.

        Args:
            resume: whether what an earlier run left may be taken up.
        """
        check_replaceable(self.target)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.path):
                if not resume and self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
                    raise InputError(
                        f"{self.path}: an earlier run lies there. Add --resume to go on with it,"
                        " or delete the folder."
                    )
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                for folder in (self.target.parent, self.path, self.checkpoints):
                    probe = folder / f".probe-{uuid.uuid4().hex}"
                    probe.mkdir()
                    probe.rmdir()
                try:
                    yield
                finally:
                    # A run that was refused before its first line leaves nothing behind.
                    with suppress(OSError):
                        self.checkpoints.rmdir()
                        self.path.rmdir()
        except OSError as error:
            raise ResourceError(
                f"{error.filename or self.path}: cannot be written ({error.strerror or error})."
                " Check its permissions, or choose another -o."
            ) from error

    def of_stage(self, number: int) -> "RunFolder":
        """The part of one stage of a recipe: checkpoints and metrics of its own."""
        part = copy.copy(self)
        part.checkpoints = self.checkpoints / f"stage_{number}"
        part.metrics = self.path / f"metrics_stage_{number}.jsonl"
        return part

    def remove_checkpoints(self) -> None:
        """The run is complete: metrics and report stay."""
        # Renamed first: checkpoints that are half deleted must not look like a run to go on with.
        doomed = self.checkpoints.with_name(f"{self.checkpoints.name}.done")
        shutil.rmtree(doomed, ignore_errors=True)
        self.checkpoints.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def check_space(self, needed: int) -> None:
        """Refuse at once if the disk has not `needed` bytes and a tenth more."""
        free, wanted = shutil.disk_usage(self.path).free, int(needed * SPARE_FACTOR)
        if wanted > free:
            raise ResourceError(
                f"{self.path}: not enough disk space for this run; needed {wanted} bytes for its"
                f" checkpoints and the artifact, free {free}. Nothing was trained. Free some space"
                " or choose another folder."
            )


_MAX_BYTES = 2**32


class Sink(Protocol):
    """Takes records as they come."""

    def write(self, record: Mapping[str, Any]) -> None:
        """One record; it has `kind` and `step`."""

    def close(self) -> None:
        """Nothing comes after this."""


class MetricsFile:
    """A file with one JSON object per line.

    A resumed run cuts it back to where its checkpoint was taken, so no step is told twice.

    Args:
        path: the file.
        length: bytes to keep of it; None keeps nothing. Then: bytes written so far.
    """

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._path = path
        try:
            # Unbuffered: a line that found no room is not tried again when the file is closed.
            self._file = path.open("ab", buffering=0)
            self._file.truncate(min(self._file.tell(), length or 0))
            self.length = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._no_room(error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line; it is with the system when this returns."""
        # JSON has neither NaN nor Inf; they are told as text.
        plain = {
            key: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        try:
            line = json.dumps(plain, allow_nan=False).encode("ascii") + b"\n"
            self.length += self._file.write(line)
        except OSError as error:
            raise self._no_room(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _no_room(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"{self._path}: cannot be written ({error.strerror or error}). Checkpoints are intact."
            " Free some space and resume."
        )


class TensorBoard:
    """Numbers of every record as scalars, `<kind>/<name>`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ResourceError(
                "the package tensorboard is not installed. Install the extra: pip install"
                " 'gossamer[tensorboard]'."
            ) from error
        self._writer: Any = SummaryWriter(folder)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add what is a number."""
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; a last line that was cut is left out."""
    records = []
    for line in read_named(path, _MAX_BYTES).split(b"\n")[:-1]:
        try:
            record = parse_object(line, str(path))
        except ArtifactError:
            break
        records.append(record)
    return records
