# SPDX-License-Identifier: Apache-2.0
"""Names of layers and constants that people can read and torch accepts."""

import re
from collections.abc import Sequence

from torch import nn

from gossamer.nn.operator_graph import GraphModule

_PARAMETER = re.compile(r"^(?P<layer>.+?)\.(?P<name>weight|bias|gamma|beta)(?:_[a-z0-9_]+)?$")
# What exporters call values that had no name: they say nothing.
_NAMELESS = re.compile(r"^(?:onnx::.*|val_\d+|_?\d+|.*_output_\d+|'.*|)$")
_MAX_KEY = 100
_MAX_PATH = 200


def layer_paths(candidates: Sequence[str]) -> list[str]:
    """One path per layer, all different and none inside of another.

    Args:
        candidates: per layer, what it might be called, best first, one per line: names of
            parameters, then the name of the node.
    """
    wanted = [_path(lines.split("\n")) for lines in candidates]
    inner = {path[: dot.start()] for path in wanted for dot in re.finditer(r"\.", path)}
    taken = set(inner)
    # A name that is the folder of another layer moves into that folder.
    return [_free(f"{path}.layer" if path in inner else path, path, taken) for path in wanted]


def constant_keys(names: Sequence[str]) -> list[str]:
    """One attribute name per constant, all different."""
    taken: set[str] = set()
    bases = ["value" if _NAMELESS.match(name) else _key(name) for name in names]
    return [_free(base, base, taken) for base in bases]


def _free(name: str, base: str, taken: set[str]) -> str:
    """`name`, or `base` with the first number that nobody has taken; it is taken from then on."""
    number = 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _path(lines: list[str]) -> str:
    *parameters, node = lines
    for name in parameters:
        found = _PARAMETER.match(name)
        if found is not None and not _NAMELESS.match(name):
            return _clean(found["layer"].split("."))
    parts = [part for part in re.split(r"[/.]", node) if part]
    # The last part of a node's name is its operator: /encoder/query/MatMul.
    if node.startswith("/") and len(parts) > 1:
        parts.pop()
    return _clean(parts)


def _clean(parts: list[str]) -> str:
    keys = [_key(part) for part in parts] or ["layer"]
    if keys[0] == GraphModule.CONSTANTS:
        keys[0] += "_"
    path = ".".join(keys)
    return path if len(path) <= _MAX_PATH else keys[-1]


def _key(part: str) -> str:
    key = re.sub(r"[^A-Za-z0-9_]+", "_", part)[:_MAX_KEY].strip("_") or "layer"
    return f"{key}_" if hasattr(nn.Module, key) or key == "training" else key
