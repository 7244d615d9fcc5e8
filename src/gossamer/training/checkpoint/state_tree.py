# SPDX-License-Identifier: Apache-2.0
"""Nested training state as JSON and tensors, and back: no pickle, no class names.

JSON has no tensors, tuples, integer keys, NaN: each is an object with one key that begins with `$`.
Tensors go into a safetensors file under the path at which they were found; one that is found twice
is stored once.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.dtypes import DTYPE_CODES
from gossamer.io.safe_files.on_disk import is_on_disk

__all__ = [
    "decode",
    "encode",
]

_TENSOR, _ITEMS, _TUPLE, _FLOAT = "$tensor", "$items", "$tuple", "$float"


def encode(tree: Any, *, copy: bool = False) -> tuple[Any, dict[str, torch.Tensor]]:
    """The tree as JSON data, and its tensors by name.

    Args:
        tree: None, numbers, text, tensors, and dicts, lists and tuples of them.
        copy: tensors are copied, so that training may go on while they are written.
    """
    encoder = _Encoder(copy)
    return encoder.encode(tree, ""), encoder.tensors


def decode(plain: Any, tensors: Mapping[str, torch.Tensor], where: str) -> Any:
    """The tree behind `encode`; ArtifactError if something does not fit."""
    if isinstance(plain, list):
        return [decode(item, tensors, where) for item in plain]
    if not isinstance(plain, dict):
        return plain
    marks = [key for key in plain if key.startswith("$")]
    if not marks:
        return {key: decode(item, tensors, where) for key, item in plain.items()}
    mark, content = marks[0], plain[marks[0]]
    if len(plain) == 1:
        if mark == _TENSOR and isinstance(content, str) and content in tensors:
            return tensors[content]
        if mark == _TUPLE and isinstance(content, list):
            return tuple(decode(item, tensors, where) for item in content)
        if mark == _FLOAT and content in ("nan", "inf", "-inf"):
            return float(content)
        if (
            mark == _ITEMS
            and isinstance(content, list)
            and all(isinstance(pair, list) and len(pair) == 2 for pair in content)
            and all(isinstance(key, str | int) for key, _ in content)
        ):
            return {key: decode(item, tensors, where) for key, item in content}
    raise ArtifactError(f"{where}: {mark[:40]!a} is not followed by what belongs there.")


class _Encoder:
    def __init__(self, copy: bool) -> None:
        self._copy = copy
        self._names: dict[tuple[Any, ...], str] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_FLOAT: repr(value)}
        if isinstance(value, torch.Tensor):
            return {_TENSOR: self._name(value, path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}/{index}") for index, item in enumerate(value)]
            return {_TUPLE: items} if isinstance(value, tuple) else items
        raise InputError(
            f"training state {path.lstrip('/') or '(top)'}: a {type(value).__name__} cannot be"
            " saved; expected numbers, text, tensors, and dicts, lists and tuples of them."
        )

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise InputError(
                    f"training state {path.lstrip('/')}: a key of type {type(key).__name__} cannot"
                    " be saved; expected text or integers."
                )
        plain = {key: self.encode(item, f"{path}/{key}") for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in plain):
            return plain
        return {_ITEMS: [[key, item] for key, item in plain.items()]}

    def _name(self, tensor: torch.Tensor, path: str) -> str:
        name = path.lstrip("/") or "tensor"
        if tensor.layout != torch.strided or tensor.dtype not in DTYPE_CODES:
            raise InputError(
                f"training state {name}: a {tensor.layout} tensor of {tensor.dtype} cannot be"
                " saved; expected a plain one."
            )
        # Tied weights are one tensor under two names. The tensors of the tree keep their memory
        # while it is encoded, so an address names one of them.
        same = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        known = self._names.get(same) if tensor.numel() else None
        if known is not None:
            return known
        self._names[same] = name
        if is_on_disk(tensor):
            # A copy already, and perhaps larger than memory.
            self.tensors[name] = tensor
            return name
        held = tensor.detach()
        self.tensors[name] = held.to("cpu", copy=True) if self._copy else held
        return name
