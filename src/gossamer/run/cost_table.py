# SPDX-License-Identifier: Apache-2.0
"""Measured times of dense against sparse, kept on disk so that a layer shape is timed once.

One JSON file per machine under `GOSSAMER_CACHE`. It is a cache: a damaged file is replaced.
"""

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from gossamer import settings
from gossamer.errors import GossamerError
from gossamer.io.limits import MAX_MANIFEST_BYTES
from gossamer.io.strict_json import parse_json
from gossamer.named_files import read_named
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import Duel

_VERSION = 2


@dataclass(frozen=True)
class CostKey:
    """What a measurement depends on besides the machine."""

    kernel: str
    rows: int
    columns: int
    pattern: str
    density: float
    tokens: int
    threads: int

    def text(self) -> str:
        """The key on disk; density to two digits, since nearby densities cost the same."""
        return (
            f"{cpu_name()}|{active_kernels()}|torch {torch.__version__}|{self.kernel}"
            f"|{self.rows}x{self.columns}|{self.pattern}|d={self.density:.2f}|t={self.tokens}|n={self.threads}"
        )


class CostTable:
    """Times by key, read once and written back atomically."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = settings.cache_dir() / "kernels.json" if path is None else path
        self._entries = _read(self.path)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CostKey) -> Duel | None:
        """The measurement filed under `key`, if there is one."""
        times = self._entries.get(key.text())
        return None if times is None else Duel(*times)

    def put(self, key: CostKey, duel: Duel) -> None:
        """File a measurement; `save` writes it."""
        self._entries[key.text()] = (duel.first_us, duel.second_us)

    def save(self) -> None:
        """Merge with what other processes wrote meanwhile; a read-only cache is no error."""
        merged = {**_read(self.path), **self._entries}
        document = {"version": _VERSION, "entries": merged}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(document, file, indent=1)
            Path(name).replace(self.path)


def _read(path: Path) -> dict[str, tuple[float, float]]:
    try:
        raw = read_named(path, MAX_MANIFEST_BYTES)
        document = parse_json(raw, str(path), max_bytes=MAX_MANIFEST_BYTES)
        if document["version"] != _VERSION:
            return {}
        return {
            str(key): (float(dense), float(sparse))
            for key, (dense, sparse) in document["entries"].items()
        }
    except (GossamerError, ValueError, KeyError, TypeError, AttributeError):
        return {}
