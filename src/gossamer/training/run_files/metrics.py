# SPDX-License-Identifier: Apache-2.0
"""What happens in a run, line by line: metrics.jsonl always, TensorBoard if it is asked for."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gossamer.errors import ArtifactError, ResourceError
from gossamer.io.safe_files.documents import parse_object
from gossamer.named_files import read_named

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
