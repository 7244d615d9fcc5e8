# SPDX-License-Identifier: Apache-2.0
"""Checkpoints without an architecture: tensors, and nothing that says what model they belong to.

`read_bare` gives one as a module that holds its tensors under their names. It cannot be called,
only saved: the artifact is then loaded into the user's own model.
"""

from pathlib import Path

import torch
from torch import nn

from gossamer.io.artifact.beside import CONFIG_FILE
from gossamer.io.gguf import is_gguf
from gossamer.io.onnx import is_onnx
from gossamer.io.pruners import DetectedMask, read_dense_checkpoint
from gossamer.io.safe_files.manifests import MANIFEST_FILE
from gossamer.named_files import is_inside
from gossamer.nn.forms import to_masked
from gossamer.nn.surgery import submodule_at

# Lookup tables have two dimensions as well, but no kernel multiplies by them.
_LOOKUP = ("emb", "wte", "wpe")


def is_bare(path: Path) -> bool:
    """Whether `path` holds tensors and nothing that says what model they belong to."""
    if path.is_dir():
        return not any(is_inside(path, name) for name in (MANIFEST_FILE, CONFIG_FILE))
    return path.is_file() and not is_gguf(path) and not is_onnx(path)


def read_bare(path: Path) -> nn.Module:
    """All tensors of the checkpoint; weights with enough zeros as masked layers."""
    checkpoint = read_dense_checkpoint(path)
    root = nn.Module()
    layers = {}
    for name, found in checkpoint.masks.items():
        layer, _, part = name.rpartition(".")
        is_matrix = layer and part == "weight" and checkpoint.tensors[name].ndim in (2, 4)
        # With more than a weight and a bias it is no plain layer.
        parts = {other for other in checkpoint.tensors if other.startswith(f"{layer}.")}
        is_plain = parts <= {name, f"{layer}.bias"}
        if is_matrix and is_plain and not any(word in name.lower() for word in _LOOKUP):
            layers[layer] = found
    for name, tensor in checkpoint.tensors.items():
        path_name, _, attribute = name.rpartition(".")
        if path_name in layers:
            continue
        parent = submodule_at(root, path_name)
        if tensor.is_floating_point():
            parent.register_parameter(attribute, nn.Parameter(tensor, requires_grad=False))
        else:
            parent.register_buffer(attribute, tensor)
    for layer, found in layers.items():
        parent_name, _, key = layer.rpartition(".")
        weight = checkpoint.tensors[f"{layer}.weight"]
        bias = checkpoint.tensors.get(f"{layer}.bias")
        submodule_at(root, parent_name).add_module(key, _masked(weight, bias, found))
    return root


def _masked(weight: torch.Tensor, bias: torch.Tensor | None, found: DetectedMask) -> nn.Module:
    has_bias, dtype = bias is not None, weight.dtype
    rows, columns = weight.shape[:2]
    dense: nn.Linear | nn.Conv2d
    if weight.ndim == 2:
        dense = nn.Linear(columns, rows, has_bias, device="meta", dtype=dtype)
    else:
        kernel = (weight.shape[2], weight.shape[3])
        dense = nn.Conv2d(columns, rows, kernel, bias=has_bias, device="meta", dtype=dtype)
    dense.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        dense.bias = nn.Parameter(bias, requires_grad=False)
    return to_masked(dense, found.mask, found.pattern)
