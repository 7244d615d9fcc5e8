# SPDX-License-Identifier: Apache-2.0
"""A click log as binary arrays: made in one pass over the text, read from memory maps afterwards.

The pass writes keys and numbers as they come. Then parts are known, features are learned from the
training part, and each part gets its own arrays of ids. The folder is complete or absent; one that
belongs to other data or other columns is made anew.

DATA/cache.json, features.arrays, train.numbers, train.ids, train.labels, ...
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.data.clicks.columns import Columns
from gossamer.data.clicks.features import FEATURES_FILE, FeatureLearner, Features, read_features
from gossamer.data.clicks.keys import mixed
from gossamer.data.clicks.rows import Array, ClickRows, RawRows, ranges, raw_rows
from gossamer.data.clicks.table_files import CHUNK_ROWS, LeftOut, open_cells
from gossamer.errors import GossamerError, InputError
from gossamer.io.safe_files.directories import replace_directory
from gossamer.io.safe_files.documents import canonical_json, parse_json, pretty_json
from gossamer.named_files import open_named, read_named

VERSION = 1
PARTS = ("train", "validation", "test")
_LIST = "cache.json"
_MAX_LIST_BYTES = 1 << 20
# Beside the text itself: keys, numbers, and then ids.
_GROWTH = 3
_TYPES: dict[str, Any] = {
    "numbers": np.float32,
    "ids": np.int32,
    "counts": np.int32,
    "labels": np.uint8,
}
_RAW_TYPES: dict[str, Any] = {
    "numbers": np.float32,
    "keys": np.uint64,
    "counts": np.int32,
    "labels": np.uint8,
    "times": np.float64,
    "hashes": np.uint32,
}


class PartRows:
    """Rows of one part, in arrays on disk.

    Args:
        arrays: numbers, ids, labels, and counts where categories may have several ids.
        num_categories: C.
    """

    def __init__(self, arrays: Mapping[str, Array], num_categories: int) -> None:
        self._arrays, self._num_categories = arrays, num_categories
        self.labels = arrays["labels"]
        counts = arrays.get("counts")
        self._starts: Array | None = None
        if counts is not None:
            sizes = counts.sum(axis=1, dtype=np.int64)
            self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def __len__(self) -> int:
        return len(self.labels)

    def block(self, begin: int, end: int) -> ClickRows:
        """Rows begin to end, copied into memory."""
        arrays, counts = self._arrays, self._arrays.get("counts")
        if self._starts is None:
            first, last = begin * self._num_categories, end * self._num_categories
        else:
            first, last = int(self._starts[begin]), int(self._starts[end])
        return ClickRows(
            np.array(arrays["numbers"][begin:end]),
            np.array(arrays["ids"][first:last]),
            None if counts is None else np.array(counts[begin:end]),
            np.array(arrays["labels"][begin:end]),
            self._num_categories,
        )


@dataclass(frozen=True)
class ClickData:
    """A click log that was read.

    Attributes:
        features: learned from the training part.
        parts: train, validation, test.
        digest: of everything that decides a batch.
        notes: what people should know: rows that were left out.
    """

    features: Features
    parts: Mapping[str, PartRows]
    digest: str
    notes: tuple[str, ...]


def open_clicks(
    folder: Path,
    columns: Columns,
    data: Path,
    evaluation: Path | None = None,
    features: Features | None = None,
) -> ClickData:
    """The click log of `data`, from the arrays in `folder`, which are made if need be.

    Args:
        folder: for the arrays.
        columns: roles and rules.
        data: the text file.
        evaluation: a file whose rows are the test part; none of `data` are.
        features: of a model that is trained further; None learns them from the training part.
    """
    sources = [data] if evaluation is None else [data, evaluation]
    given = None if features is None else features.digest.hex()
    asked = hashlib.sha256(canonical_json({"columns": columns.plain(), "features": given}))
    found = _opened(folder, asked.hexdigest(), sources)
    if found is None:
        size = sum(path.stat().st_size for path in sources)
        with replace_directory(folder, _GROWTH * size, _check_own) as unfinished:
            _make(unfinished, columns, sources, features, asked.hexdigest())
        found = _opened(folder, asked.hexdigest(), sources)
    if found is None:
        raise InputError(f"{data}: changes while it is read; its rows would not stay the same.")
    return found


def _check_own(path: Path) -> None:
    if path.exists() and not (path / _LIST).is_file() and any(path.iterdir()):
        raise InputError(f"{path}: is no folder of arrays that may be replaced.")


def _opened(folder: Path, asked: str, sources: list[Path]) -> ClickData | None:
    """What lies there, if it is whole and was made of this data by these columns."""
    try:
        listed = parse_json(read_named(folder / _LIST, _MAX_LIST_BYTES), str(folder / _LIST))
        if listed["version"] != VERSION or listed["asked"] != asked:
            return None
        known = listed["sources"]
        if len(known) != len(sources) or not all(map(_is_same, sources, known)):
            return None
        files = listed["files"]
        if any(_digest_of(folder / name) != entry["sha256"] for name, entry in files.items()):
            return None
        content = (folder / FEATURES_FILE).read_bytes()
        features = read_features(content, str(folder))
        parts = {part: _part(folder, part, files, features) for part in PARTS}
    except (GossamerError, OSError, KeyError, TypeError, ValueError):
        return None
    digest = hashlib.sha256(canonical_json({n: e["sha256"] for n, e in files.items()}))
    return ClickData(features, parts, digest.hexdigest(), tuple(listed["notes"]))


def _part(folder: Path, part: str, files: Mapping[str, Any], features: Features) -> PartRows:
    arrays: dict[str, Array] = {}
    for name, dtype in _TYPES.items():
        if (key := f"{part}.{name}") in files:
            shape = tuple(files[key]["shape"])
            if np.prod(shape):
                arrays[name] = np.memmap(folder / key, dtype, "r", shape=shape)
            else:
                arrays[name] = np.zeros(shape, dtype)
    return PartRows(arrays, len(features.columns.categories))


def _is_same(path: Path, known: Mapping[str, Any]) -> bool:
    """Whether a file is the one that was read: by size and time, else by its bytes."""
    now = path.stat()
    if now.st_size != known["size"]:
        return False
    return bool(now.st_mtime_ns == known["modified"] or _digest_of(path) == known["sha256"])


def _digest_of(path: Path) -> str:
    hasher = hashlib.sha256()
    with open_named(path, InputError) as file:
        while part := file.read(1 << 20):
            hasher.update(part)
    return hasher.hexdigest()


def _make(
    folder: Path, columns: Columns, sources: list[Path], features: Features | None, asked: str
) -> None:
    """Fill an empty folder."""
    raw_folder = folder / "raw"
    raw_folder.mkdir()
    known, sizes, notes = [], [], []
    with _RawFiles(raw_folder) as files:
        for path in sources:
            entry, left_out = _read_text(path, columns, files)
            known.append(entry)
            sizes.append(files.count)
            notes += [str(left_out)] if left_out.count else []
    raw = _RawArrays(raw_folder, len(columns.numbers), len(columns.categories))
    parts = _parts_of(raw, columns, sizes)
    if features is None:
        learner = FeatureLearner(columns)
        for block, part in raw.blocks(parts):
            learner.add(_chosen(block, part == 0))
        features = learner.features()
    written = _write_parts(folder, raw, parts, features, str(sources[0]))
    for path in raw_folder.iterdir():
        path.unlink()
    raw_folder.rmdir()
    (folder / FEATURES_FILE).write_bytes(features.content)
    written[FEATURES_FILE] = {"sha256": features.digest.hex(), "shape": [len(features.content)]}
    listed = {
        "version": VERSION,
        "asked": asked,
        "sources": known,
        "files": written,
        "notes": notes,
    }
    (folder / _LIST).write_bytes(pretty_json(listed))


def _read_text(path: Path, columns: Columns, files: "_RawFiles") -> tuple[dict[str, Any], LeftOut]:
    """Write all rows of a text file as raw arrays."""
    before, left_out, hasher = files.count, LeftOut(str(path)), hashlib.sha256()
    status = path.stat()
    with open_cells(path, columns, left_out, watch=hasher.update) as chunks:
        for cells in chunks:
            files.add(raw_rows(cells, columns, str(path), left_out.add))
    count = files.count - before
    if left_out.count > columns.bad_rows * (count + left_out.count):
        raise InputError(
            f"{left_out} That is more than bad_rows allows ({columns.bad_rows:g} of all rows)."
            " Check the roles of the columns, or raise bad_rows."
        )
    if not count:
        raise InputError(f"{path}: has no rows.")
    entry = {
        "size": status.st_size,
        "modified": status.st_mtime_ns,
        "sha256": hasher.hexdigest(),
    }
    return entry, left_out


def _parts_of(raw: "_RawArrays", columns: Columns, sizes: list[int]) -> Array:
    """uint8 [N]: 0 for training, 1 for validation, 2 for test."""
    count = sizes[0]
    tested = columns.test if len(sizes) == 1 else 0.0
    if columns.split_by == "hash":
        # In [0, 1), the same for equal rows, whatever their place.
        where = mixed(raw.arrays["hashes"][:count].astype(np.uint64) + np.uint64(1)) / 2.0**64
    else:
        where = (np.arange(count) + 0.5) / count
    last, middle = 1 - tested, 1 - tested - columns.validation
    if columns.split_by == "time":
        times = np.array(raw.arrays["times"][:count])
        order = np.sort(times)
        # Rows of one moment stay together, in the later part.
        first_test, first_validation = (
            order[min(int(bound * count), count - 1)] if bound < 1 else np.inf
            for bound in (last, middle)
        )
        parts = np.where(times >= first_test, 2, np.where(times >= first_validation, 1, 0))
    else:
        parts = np.where(where >= last, 2, np.where(where >= middle, 1, 0))
    parts = np.concatenate([parts, np.full(sizes[-1] - count, 2)]).astype(np.uint8)
    if not (parts == 0).any():
        raise InputError("split: leaves no row to train on; make validation and test smaller.")
    return parts


def _write_parts(
    folder: Path, raw: "_RawArrays", parts: Array, features: Features, where: str
) -> dict[str, Any]:
    """Arrays of all parts; name -> hash and shape."""
    names = [name for name in _TYPES if name != "counts" or "counts" in raw.arrays]
    with ExitStack() as stack:
        files = {
            (part, name): stack.enter_context((folder / f"{part}.{name}").open("xb"))
            for part in PARTS
            for name in names
        }
        for block, part in raw.blocks(parts):
            for index, called in enumerate(PARTS):
                if (part == index).any():
                    rows = features.encode(_chosen(block, part == index), f"{where}: {called} row")
                    for name in names:
                        array = np.ascontiguousarray(getattr(rows, name))
                        files[called, name].write(array.reshape(-1).view(np.uint8).data)
    width = {"numbers": raw.num_numbers, "counts": raw.num_categories}
    written = {}
    for part_name, name in files:
        path = folder / f"{part_name}.{name}"
        shape = [path.stat().st_size // np.dtype(_TYPES[name]).itemsize]
        if name in width:
            shape = [(folder / f"{part_name}.labels").stat().st_size, width[name]]
        written[path.name] = {"sha256": _digest_of(path), "shape": shape}
    return written


def _chosen(raw: RawRows, keep: Array) -> RawRows:
    """Some rows of a block; numbers, ids and labels only."""
    empty = np.zeros(0)
    if raw.counts is None:
        count = len(raw.keys) // max(len(keep), 1)
        keys = raw.keys.reshape(len(keep), count)[keep].reshape(-1)
        return RawRows(raw.numbers[keep], keys, None, raw.labels[keep], empty, empty)
    sizes = raw.counts.sum(axis=1, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    keys = raw.keys[ranges(starts[keep], sizes[keep])]
    return RawRows(raw.numbers[keep], keys, raw.counts[keep], raw.labels[keep], empty, empty)


class _RawFiles:
    """Arrays that grow while a text is read."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: (folder / name).open("xb") for name in _RAW_TYPES}
        self.count = 0

    def add(self, raw: RawRows) -> None:
        for name, file in self._files.items():
            array = getattr(raw, name)
            if array is not None:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self.count += len(raw.labels)

    def __enter__(self) -> "_RawFiles":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


class _RawArrays:
    """Arrays of a text that was read."""

    def __init__(self, folder: Path, num_numbers: int, num_categories: int) -> None:
        self.num_numbers, self.num_categories = num_numbers, num_categories
        self.arrays: dict[str, Array] = {}
        for name, dtype in _RAW_TYPES.items():
            path = folder / name
            if path.stat().st_size:
                self.arrays[name] = np.memmap(path, dtype, "r")
        count = len(self.arrays["labels"])
        empty = np.zeros((count, 0), np.float32)
        numbers = self.arrays.get("numbers", empty)
        self.arrays["numbers"] = numbers.reshape(count, num_numbers)
        self._starts = np.arange(count + 1) * num_categories
        if "counts" in self.arrays:
            counts = self.arrays["counts"] = self.arrays["counts"].reshape(count, num_categories)
            sizes = counts.sum(axis=1, dtype=np.int64)
            self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.arrays.setdefault("keys", np.zeros(0, np.uint64))

    def blocks(self, parts: Array) -> Iterator[tuple[RawRows, Array]]:
        """Rows in order, and the part of each."""
        empty = np.zeros(0)
        for begin in range(0, len(parts), CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, len(parts))
            counts = self.arrays.get("counts")
            keys = self.arrays["keys"][int(self._starts[begin]) : int(self._starts[end])]
            raw = RawRows(
                np.array(self.arrays["numbers"][begin:end]),
                np.array(keys),
                None if counts is None else np.array(counts[begin:end]),
                np.array(self.arrays["labels"][begin:end]),
                empty,
                empty,
            )
            yield raw, parts[begin:end]
