# SPDX-License-Identifier: Apache-2.0
"""A pruning run that was killed goes on with the next layer.

One file per finished layer: kept values and mask bits. A file appears whole or not at all. What the
run was (model, data, recipe) stands in `journal.json`; another run does not take it up.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.formats.bits import check_bits, pack_bits, unpack_bits
from gossamer.io.safe_files.directories import whole_file, write_whole
from gossamer.io.safe_files.documents import read_object
from gossamer.io.safe_files.tensors import read_header, read_tensors, write_tensors
from gossamer.named_files import open_inside, size_of
from gossamer.nn.batch import Batch
from gossamer.pruning.calibration.calibrated import Journal
from gossamer.pruning.solvers import LayerSolution

__all__ = [
    "DiskJournal",
    "check_same_run",
    "data_digest",
    "model_digest",
]

KEY_FILE = "journal.json"
_ARRAYS = ("values", "mask_bits", "shape", "notes")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class DiskJournal(Journal):
    """Solutions in a folder.

    Args:
        folder: created if it is missing.
        key: what the run is, by name; values are digests or short texts.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self.folder = folder
        self.num_recalled = 0
        self._stage = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check_key(dict(key))
        except OSError as error:
            raise _no_room(folder, error) from error

    def recall(self, name: str) -> LayerSolution | None:
        """The solution of a layer that an earlier run finished."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            with open_inside(path.parent, path.name) as file:
                header = read_header(file, size_of(file), str(path))
                solution = _solution(read_tensors(file, header, str(path)))
        except (ArtifactError, KeyError, ValueError, RuntimeError) as error:
            raise ArtifactError(
                f"{path}: cannot be read ({error}). Delete this file to prune {name} again."
            ) from error
        self.num_recalled += 1
        return solution

    def note(self, name: str, solution: LayerSolution) -> None:
        """Write one file, on disk when this returns."""
        path = self._path(name)
        mask_RK = solution.mask_RK
        tensors = {
            "values": solution.weight_RK[mask_RK],
            "mask_bits": pack_bits(mask_RK),
            "shape": torch.tensor(mask_RK.shape),
            "notes": torch.tensor(list("\n".join(solution.notes).encode()), dtype=torch.uint8),
        }
        try:
            with whole_file(path) as file:
                write_tensors(file.write, tensors)
        except OSError as error:
            raise _no_room(path, error) from error

    def of_stage(self, number: int) -> "DiskJournal":
        """The same folder, with the solutions of one stage."""
        part = copy.copy(self)
        part._stage = number
        return part

    def remove(self) -> None:
        """Forget everything: the run is complete."""
        for path in [*self.folder.glob("*.safetensors"), *self.folder.glob("*.tmp*")]:
            path.unlink()
        (self.folder / KEY_FILE).unlink(missing_ok=True)
        self.folder.rmdir()

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self._stage} {name}".encode()).hexdigest()
        return self.folder / f"{digest[:24]}.safetensors"

    def _check_key(self, key: dict[str, str]) -> None:
        path = self.folder / KEY_FILE
        if not path.exists():
            write_whole(path, json.dumps(key, indent=1).encode())
            return
        try:
            old = read_object(self.folder, KEY_FILE)
        except ArtifactError as error:
            raise ArtifactError(f"{error} Delete {self.folder}.") from error
        check_same_run(self.folder, old, key)


def check_same_run(folder: Path, old: Mapping[str, str], key: Mapping[str, str]) -> None:
    """Raise if what lies in `folder` belongs to a run with another key."""
    changed = [
        _change(name, str(old.get(name, "absent")), str(key.get(name, "absent")))
        for name in sorted({*old, *key})
        if old.get(name) != key.get(name)
    ]
    if changed:
        text = "; ".join(changed)[:2000]
        raise InputError(
            f"{folder}: belongs to another run: {text}. Repeat that run with what it had, name"
            " another -o, or delete the folder to start anew."
        )


def _change(name: str, old: str, new: str) -> str:
    """What differs in words; a digest is told by its first digits, which is enough to compare."""
    if _DIGEST.fullmatch(old) and _DIGEST.fullmatch(new):
        return f"the {name} is another one ({old[:8]}... then, {new[:8]}... now)"
    # A stranger's file may say anything, so little of it is repeated.
    old, new = (
        text[:8] + "..." if _DIGEST.fullmatch(text) else ascii(text)[1:-1][:100]
        for text in (old, new)
    )
    return f"{ascii(name)[1:-1][:80]} was {old}, is {new}"


def model_digest(model: nn.Module) -> str:
    """sha256 of all parameters and buffers, names included."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            _add_tensor(digest, tensor, f"{name} ")
    return digest.hexdigest()


def data_digest(batches: Iterable[Batch]) -> str:
    """sha256 of inputs and labels."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            _add_tensor(digest, value)
        elif isinstance(value, Mapping):
            for key in sorted(value):
                digest.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            digest.update(repr(value).encode())

    for batch in batches:
        add([batch.arguments, batch.labels])
    return digest.hexdigest()


def _add_tensor(digest: Any, tensor: torch.Tensor, name: str = "") -> None:
    digest.update(f"{name}{tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _solution(held: Mapping[str, torch.Tensor]) -> LayerSolution:
    values, bits, shape, notes = (held[name] for name in _ARRAYS)
    kinds = [(each.ndim, each.dtype) for each in (bits, shape, notes)]
    if kinds != [(2, torch.uint8), (1, torch.int64), (1, torch.uint8)] or len(shape) != 2:
        raise ValueError("its arrays are not those of a solved layer")
    rows, columns = (int(size) for size in shape)
    check_bits(bits, (rows, columns), "mask_bits")
    mask_RK = unpack_bits(bits, columns)
    if values.ndim != 1 or not values.is_floating_point() or int(mask_RK.sum()) != len(values):
        raise ValueError("its mask and its values do not agree")
    weight_RK = torch.zeros(rows, columns, dtype=values.dtype)
    weight_RK[mask_RK] = values
    text = bytes(notes.tolist()).decode("utf-8")
    return LayerSolution(weight_RK, mask_RK, tuple(text.splitlines()))


def _no_room(path: Path, error: Exception) -> ResourceError:
    return ResourceError(
        f"{path}: cannot be written ({error}). Free some space or name another --out."
    )
