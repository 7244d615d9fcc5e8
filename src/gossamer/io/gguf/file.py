# SPDX-License-Identifier: Apache-2.0
"""Llama-family gguf files as transformers models with fp32 weights.

Quantised weights are dequantised: what comes out is the model the file stands for, not the one it
was quantised from. Names, shapes and settings are checked against each other before any tensor is
read; nothing in the file is executed.

Legend: H query heads, G key and value heads, P half of a head's width.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.gguf.header import GgufHeader, GgufTensor, open_gguf
from gossamer.io.huggingface.directory import from_tensors
from gossamer.io.safe_files.limits import MAX_FAULTS_SHOWN, check_memory
from gossamer.nn.families import answers

GGUF_SUFFIX = ".gguf"
_FAMILY = "Llama"
_NAMES = answers("gguf")[_FAMILY]
_PARTS, _CHAIN = answers("block")[_FAMILY], answers("chains")[_FAMILY][_NAMES.model]
_BLOCK_NAMES = dict(
    zip((*_NAMES.norms, *_NAMES.linears), (*_PARTS.norms, *_PARTS.linears), strict=True)
)
_OUTER_NAMES = dict(zip((*_NAMES.front, *_NAMES.back), (*_CHAIN.front, *_CHAIN.back), strict=True))
ARCHITECTURE: str = _NAMES.architecture
_EMBEDDING, _NORM, _HEAD = (f"{name}.weight" for name in _OUTER_NAMES)
# Settings that change what the model computes in ways this reader does not know.
_MUST_BE_ABSENT = ("expert_count", "rope.scaling.factor", "attention.sliding_window")


def is_gguf(path: os.PathLike[str] | str) -> bool:
    """Whether a path has the name of a gguf file."""
    return Path(path).suffix.lower() == GGUF_SUFFIX


def load_gguf(path: os.PathLike[str] | str, *, max_bytes: int | None = None) -> nn.Module:
    """The model in a gguf file of the Llama family as LlamaForCausalLM, fp32, in eval mode.

    Args:
        path: the file. Tensor types: `gossamer.io.gguf.header.TENSOR_TYPES`.
        max_bytes: refuse models that need more memory; default: what is available.

    Raises:
        ArtifactError: damaged, hostile, or of another architecture; nothing was allocated.
        InputError: the package gguf or transformers is missing.
        ResourceError: needs more memory than `max_bytes`.
    """
    path = Path(path)
    file, header = open_gguf(path)
    with file:
        where = str(path)
        config = llama_config(header, where)
        _check_tensors(header, config, where)
        sizes = [4 * math.prod(tensor.shape) for tensor in header.tensors.values()]
        stored = sum(tensor.end - tensor.begin for tensor in header.tensors.values())
        # The largest tensor exists three times while it is dequantised and put in order.
        check_memory(sum(sizes) + 2 * max(sizes), stored, max_bytes, where)
        tensors = dict(_read_tensors(file, header, config, where))
    return from_tensors(_NAMES.model, config, tensors, where)


def llama_config(header: GgufHeader, where: str) -> dict[str, Any]:
    """The content of config.json behind the settings of a file."""
    found = header.settings.get("general.architecture")
    if found != ARCHITECTURE:
        raise ArtifactError(
            f"{where}: architecture {ascii(found)[:40]} cannot be read from gguf; known:"
            f" {ARCHITECTURE!r}. Use the Hugging Face directory of the model instead."
        )
    read = _Settings(header.settings, where)
    for name in _MUST_BE_ABSENT:
        if header.settings.get(f"{ARCHITECTURE}.{name}") not in (None, 0, 1.0):
            raise ArtifactError(f"{where}: models with {ARCHITECTURE}.{name} cannot be read.")
    scaling = header.settings.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if scaling != "none":
        raise ArtifactError(f"{where}: rope scaling {ascii(scaling)[:40]} cannot be read.")
    width, num_heads = read.count("embedding_length"), read.count("attention.head_count")
    head_width = read.count("attention.key_length", width // num_heads)
    num_kv_heads = read.count("attention.head_count_kv", num_heads)
    rotated = read.count("rope.dimension_count", head_width)
    values = read.count("attention.value_length", head_width)
    if rotated != head_width or values != head_width or head_width % 2 or num_heads % num_kv_heads:
        raise ArtifactError(
            f"{where}: {num_heads} heads of {head_width}, {num_kv_heads} key heads, {rotated}"
            f" rotated and {values} value columns do not make a Llama."
        )
    if _EMBEDDING not in header.tensors or len(header.tensors[_EMBEDDING].shape) != 2:
        raise ArtifactError(f"{where}: has no matrix {_EMBEDDING!r}.")
    config: dict[str, Any] = {
        "architectures": [_NAMES.model],
        "model_type": ARCHITECTURE,
        "vocab_size": header.tensors[_EMBEDDING].shape[0],
        "hidden_size": width,
        "intermediate_size": read.count("feed_forward_length"),
        "num_hidden_layers": read.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_width,
        "max_position_embeddings": read.count("context_length"),
        "rms_norm_eps": read.positive("attention.layer_norm_rms_epsilon", None),
        "rope_theta": read.positive("rope.freq_base", 10000.0),
        "tie_word_embeddings": _HEAD not in header.tensors,
        "hidden_act": "silu",
    }
    for token in ("bos", "eos"):
        config[f"{token}_token_id"] = header.settings.get(f"tokenizer.ggml.{token}_token_id")
    config["pad_token_id"] = header.settings.get("tokenizer.ggml.padding_token_id")
    return config


class _Settings:
    """Settings of the architecture, with the type and range they must have."""

    def __init__(self, settings: dict[str, Any], where: str) -> None:
        self._settings = settings
        self._where = where

    def count(self, name: str, default: int | None = None) -> int:
        value = self._settings.get(f"{ARCHITECTURE}.{name}", default)
        if type(value) is not int or not 1 <= value < 2**31:
            raise self._fault(name, "a whole number from 1", value)
        return value

    def positive(self, name: str, default: float | None) -> float:
        value = self._settings.get(f"{ARCHITECTURE}.{name}", default)
        if type(value) is not float or not 0 < value < float("inf"):
            raise self._fault(name, "a positive number", value)
        # fp32 in the file: the shortest decimal that is the same fp32 number is what was meant.
        return float(f"{value:.7g}")

    def _fault(self, name: str, expected: str, value: object) -> ArtifactError:
        return ArtifactError(
            f"{self._where}: {ARCHITECTURE}.{name} must be {expected}, got {ascii(value)[:40]}."
        )


def _check_tensors(header: GgufHeader, config: dict[str, Any], where: str) -> None:
    """Every tensor the class needs is there in its shape, and nothing else is."""
    num_layers = config["num_hidden_layers"]
    if num_layers > len(header.tensors):
        raise ArtifactError(
            f"{where}: {num_layers} blocks announced, {len(header.tensors)} tensors stored."
        )
    wanted = _wanted_shapes(config)
    found = {name: tensor.shape for name, tensor in header.tensors.items()}
    faults = [f"{name!a} is missing" for name in wanted if name not in found]
    faults += [f"{name!a} has no place in a Llama" for name in found if name not in wanted]
    faults += [
        f"{name!a} is {list(found[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if faults:
        shown = "; ".join(faults[:MAX_FAULTS_SHOWN])
        raise ArtifactError(f"{where}: its tensors do not fit its settings: {shown}.")


def _wanted_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
        "ffn_norm": (width,),
        "ffn_gate": (ffn, width),
        "ffn_up": (ffn, width),
        "ffn_down": (width, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (vocab, width), _NORM: (width,)}
    if not config["tie_word_embeddings"]:
        shapes[_HEAD] = (vocab, width)
    for number in range(config["num_hidden_layers"]):
        shapes.update({f"blk.{number}.{name}.weight": shape for name, shape in block.items()})
    return shapes


def _read_tensors(
    file: BinaryIO, header: GgufHeader, config: dict[str, Any], where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in sorted(header.tensors.items(), key=lambda item: item[1].begin):
        weight = _dequantised(file, tensor, where)
        if name.endswith(".attn_q.weight"):
            weight = _half_split(weight, config["num_attention_heads"])
        elif name.endswith(".attn_k.weight"):
            weight = _half_split(weight, config["num_key_value_heads"])
        yield _torch_name(name), weight


def _torch_name(name: str) -> str:
    *block, part, _ = name.split(".")
    if not block:
        return f"{_OUTER_NAMES[part]}.weight"
    return f"{_CHAIN.layers}.{block[1]}.{_BLOCK_NAMES[part]}.weight"


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of pairs (2i, 2i + 1), as gguf rotates them, to the halves transformers rotates."""
    pairs_HP2K = weight.view(num_heads, -1, 2, weight.shape[1])
    return pairs_HP2K.transpose(1, 2).reshape(weight.shape)


def _dequantised(file: BinaryIO, tensor: GgufTensor, where: str) -> torch.Tensor:
    numpy, quants, kinds = _import_gguf()
    file.seek(tensor.begin)
    raw = file.read(tensor.end - tensor.begin)
    if len(raw) != tensor.end - tensor.begin:
        raise ArtifactError(f"{where}: ended inside of tensor {tensor.name!a}.")
    rows_RB = numpy.frombuffer(raw, dtype=numpy.uint8)
    rows_RB = rows_RB.reshape(*tensor.shape[:-1], -1) if rows_RB.size else rows_RB
    kind = kinds(tensor.kind.code)
    if kind.name in ("F32", "F16"):
        # The package expects these two as numbers and everything else as bytes.
        rows_RB = rows_RB.view(numpy.float32 if kind.name == "F32" else numpy.float16)
    with numpy.errstate(all="ignore"):  # a scale may be infinite: what is stored is what is loaded
        values = quants.dequantize(rows_RB, kind).astype(numpy.float32, copy=False)
    return torch.from_numpy(numpy.array(values)).reshape(tensor.shape)


def _import_gguf() -> tuple[Any, Any, Any]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise InputError(
            "the package gguf is not installed, but this file needs it: pip install 'gossamer[hf]'."
        ) from error
    import numpy

    return numpy, quants, GGMLQuantizationType
