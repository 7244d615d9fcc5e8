# SPDX-License-Identifier: Apache-2.0
"""gguf files as transformers models with fp32 weights.

Quantised weights are dequantised: what comes out is the model the file stands for, not the one it
was quantised from. Names, shapes and settings are checked against each other before any tensor is
read; nothing in the file is executed. How a family names things is in its row (`GgufNames`).

Legend: H heads, P half of a head's width, K columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.gguf.common_types import numbers_of
from gossamer.io.gguf.header import GgufHeader, GgufTensor, open_gguf
from gossamer.io.gguf.settings import ROPE_TENSORS, GgufModel, read_settings, with_rope
from gossamer.io.gguf.tokenizer import tokenizer_files
from gossamer.io.safe_files import MAX_FAULTS_SHOWN
from gossamer.io.safe_files.checks import check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.streamed import StreamedModel, streamed_model
from gossamer.nn.surgery.matrix_layers import conv1d_paths

GGUF_SUFFIX = ".gguf"


def is_gguf(path: AnyPath) -> bool:
    """Whether a path has the name of a gguf file."""
    return Path(path).suffix.lower() == GGUF_SUFFIX


def load_gguf(path: AnyPath, *, max_bytes: int | None = None) -> nn.Module:
    """The model in a gguf file of a family that has a row for it, fp32, in eval mode.

    Args:
        path: the file. Tensor types: `gossamer.io.gguf.header.TENSOR_TYPES`.
        max_bytes: refuse models that need more memory; default: what is available.

    Raises:
        ArtifactError: damaged, hostile, or of another architecture; nothing was allocated.
        InputError: the package gguf or transformers is missing.
        ResourceError: needs more memory than `max_bytes`.
    """
    file, header = open_gguf(path)
    with file:
        where = str(path)
        described = read_settings(header, where)
        rope = {
            name: dequantised(file, header.tensors[name], where)
            for name in ROPE_TENSORS
            if name in header.tensors and math.prod(header.tensors[name].shape) < 2**16
        }
        described = with_rope(described, rope, where)
        places = checked_places(header, described, where)
        found = [tensor for tensor in header.tensors.values() if tensor.name in places]
        sizes = [4 * math.prod(tensor.shape) for tensor in found]
        stored = sum(tensor.end - tensor.begin for tensor in found)
        # The largest tensor exists three times while it is dequantised and put in order.
        check_memory(sum(sizes) + 2 * max(sizes), stored, max_bytes, where)
        tensors = {}
        for tensor in sorted(found, key=lambda tensor: tensor.begin):
            name, transposed = places[tensor.name]
            weight = _as_in_torch(dequantised(file, tensor, where), tensor.name, described)
            tensors[name] = weight.t().contiguous() if transposed else weight
    from gossamer.io.huggingface import from_tensors

    return from_tensors(described.names.model, described.config, tensors, where)


@dataclass(frozen=True)
class OpenGguf:
    """A model without weights, the open file that they are fetched from, and its tokenizer."""

    model: StreamedModel
    file: BinaryIO
    beside: dict[str, bytes]


def stream_gguf(path: AnyPath) -> OpenGguf | None:
    """The model in a gguf file without its weights, which are read when they are fetched.

    Args:
        path: the file, of which everything but the numbers of tensors is checked now.

    Returns:
        None for a model that only transformers can build, and one whose tokenizer lies elsewhere.
    """
    file, header = open_gguf(path)
    where, opened = str(path), None
    try:
        described = read_settings(header, where)
        model = streamed_model(described.names.model, described.config)
        if model is not None and not any(name in header.tensors for name in ROPE_TENSORS):
            model.read_from(_reader(file, header, described, where, model))
            opened = OpenGguf(model, file, tokenizer_files(header, where))
    finally:
        if opened is None:
            file.close()
    return opened


def _reader(
    file: BinaryIO, header: GgufHeader, described: GgufModel, where: str, model: nn.Module
) -> Callable[[str], torch.Tensor]:
    """Reads a tensor by its name in a state dict; a tied head is the table."""
    places = checked_places(header, described, where, model)
    in_file = {name: tensor for tensor, (name, _) in places.items()}
    front, back = (f"{n}.weight" for n in (described.chain.front[0], described.chain.back[-1]))
    in_file.setdefault(back, in_file[front])

    def read(name: str) -> torch.Tensor:
        tensor = header.tensors[in_file[name]]
        return _as_in_torch(dequantised(file, tensor, where), tensor.name, described)

    return read


def checked_places(
    header: GgufHeader, described: GgufModel, where: str, skeleton: nn.Module | None = None
) -> dict[str, tuple[str, bool]]:
    """Name in the file -> (name in a state dict, whether torch stores it transposed).

    Every tensor that the class needs is there in its shape, and nothing else is.

    Args:
        header: of the file.
        described: what it says.
        where: for messages.
        skeleton: the model without weights; None: that of transformers.
    """
    num_layers, found = described.num_layers, header.tensors
    if num_layers > len(found):
        raise ArtifactError(f"{where}: {num_layers} blocks announced, {len(found)} tensors stored.")
    model = described.names.model
    if skeleton is None:
        from gossamer.io.huggingface import build_transformers

        skeleton = build_transformers(model, described.config, max_tensors=10 * len(found) + 100)
    turned = {f"{name}.weight" for name in conv1d_paths(skeleton)}
    places, wanted = {}, {}
    for name, parameter in skeleton.named_parameters():
        in_file = described.name_in_file(name)
        shape = tuple(parameter.shape)
        places[in_file] = (name, name in turned)
        wanted[in_file] = shape[::-1] if name in turned else shape
    if described.config["tie_word_embeddings"]:
        wanted.pop(described.name_in_file(f"{described.chain.back[-1]}.weight"), None)
    faults = [f"{name!a} is missing" for name in wanted if name not in found]
    faults += [
        f"{name!a} has no place in a {model}"
        for name in found
        if name not in wanted and name not in described.used
    ]
    faults += [
        f"{name!a} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
    ]
    if faults:
        shown = "; ".join(faults[:MAX_FAULTS_SHOWN])
        raise ArtifactError(f"{where}: its tensors do not fit its settings: {shown}.")
    return {name: places[name] for name in wanted}


def _as_in_torch(weight: torch.Tensor, name: str, described: GgufModel) -> torch.Tensor:
    """Rows in the order in which transformers has them, norms as it stores them."""
    part = name.split(".")[-2]
    if part.endswith("norm"):
        return weight - described.norm_offset
    heads = described.heads.get(part)
    if heads is None or not described.names.rows:
        return weight
    if described.names.rows == "pairs":
        # Rows of pairs (2i, 2i + 1), as llama.cpp rotates them, to the halves transformers rotates.
        pairs_HP2K = weight.reshape(heads, -1, 2, *weight.shape[1:])
        return pairs_HP2K.transpose(1, 2).reshape(weight.shape)
    # All queries, all keys, all values: to query, key and value of each head in turn.
    parts_3HDK = weight.reshape(3, heads, -1, *weight.shape[1:])
    return parts_3HDK.transpose(0, 1).reshape(weight.shape)


def dequantised(file: BinaryIO, tensor: GgufTensor, where: str) -> torch.Tensor:
    """A tensor of an open file, float32, in the order of the file."""
    file.seek(tensor.begin)
    raw = file.read(tensor.end - tensor.begin)
    if len(raw) != tensor.end - tensor.begin:
        raise ArtifactError(f"{where}: ended inside of tensor {tensor.name!a}.")
    plain = numbers_of(raw, tensor.kind.code)
    if plain is not None:
        return torch.from_numpy(plain).reshape(tensor.shape)
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise InputError(
            "the package gguf is not installed, but this file needs it: pip install 'gossamer[hf]'."
        ) from error
    kind = GGMLQuantizationType(tensor.kind.code)
    # The package expects these two as numbers and everything else as bytes.
    stored = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    rows: Any = np.frombuffer(raw, stored)
    rows = rows.reshape(*tensor.shape[:-1], -1) if rows.size else rows
    with np.errstate(all="ignore"):  # a scale may be infinite: what is stored is what is loaded
        values = quants.dequantize(rows, kind).astype(np.float32, copy=False)
    return torch.from_numpy(np.array(values)).reshape(tensor.shape)
