# SPDX-License-Identifier: Apache-2.0
"""Measured races of dense and sparse kernels, kept on disk so that a layer shape is timed once.

One JSON file per machine under `GOSSAMER_CACHE`. It is a cache: a damaged file is replaced, and so
is one of an older version. Only races on a quiet machine are filed: a record is believed for good.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gossamer import settings
from gossamer.errors import GossamerError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.documents import parse_json
from gossamer.named_files import read_named
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import Race

_VERSION = 3


@dataclass(frozen=True)
class CostKey:
    """What a measurement depends on besides the machine."""

    kernel: str
    rows: int
    columns: int
    pattern: str
    density: float
    tokens: int
    threads: int = field(default_factory=torch.get_num_threads)

    def text(self) -> str:
        """The key on disk; density to two digits, since nearby densities cost the same."""
        return (
            f"{self.kernel}|{self.rows}x{self.columns}|{self.pattern}|d={self.density:.2f}"
            f"|t={self.tokens}|n={self.threads}"
        )


class CostTable:
    """Races by what they were about, read once and written back atomically."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = settings.cache_dir() / "kernels.json" if path is None else path
        self._entries = _read(self.path)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[CostKey]) -> Race | None:
        """The race of dense and these kernels, all of them and no other, if there is one."""
        held = self._entries.get(_text(keys))
        return held if held is not None and len(held.us) == len(keys) + 1 else None

    def put(self, keys: Sequence[CostKey], race: Race) -> None:
        """File a race of dense, which comes first, and kernels; `save` writes it.

        A race beside a busy neighbour is not filed: the next one may be quiet.
        """
        if race.load.is_quiet:
            self._entries[_text(keys)] = Race(race.us, race.spread)

    def save(self) -> None:
        """Merge with what other processes wrote meanwhile; a read-only cache is no error."""
        merged = {**_read(self.path), **self._entries}
        entries = {key: {"us": list(r.us), "spread": r.spread} for key, r in merged.items()}
        document = {"version": _VERSION, "entries": entries}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(document, file, indent=1)
            Path(name).replace(self.path)


def _text(keys: Sequence[CostKey]) -> str:
    """Of a whole race: times of two races were taken at two moments, and are not comparable."""
    machine = f"{cpu_name()}|{active_kernels()}|torch {torch.__version__}"
    return " + ".join([machine, *(key.text() for key in keys)])


def _read(path: Path) -> dict[str, Race]:
    try:
        raw = read_named(path, MAX_MANIFEST_BYTES)
        document = parse_json(raw, str(path))
        if document["version"] != _VERSION:
            return {}
        return {
            str(key): Race(tuple(float(us) for us in held["us"]), float(held["spread"]))
            for key, held in document["entries"].items()
        }
    except (GossamerError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return {}
