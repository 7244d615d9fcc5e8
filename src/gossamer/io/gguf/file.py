# SPDX-License-Identifier: Apache-2.0
"""Llama-family gguf files as transformers models with fp32 weights.

Quantised weights are dequantised: what comes out is the model the file stands for, not the one it
was quantised from. Names, shapes and settings are checked against each other before any tensor is
read; nothing in the file is executed.

Legend: H query heads, G key and value heads, P half of a head's width.
"""

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.gguf.header import GgufHeader, GgufTensor, open_gguf
from gossamer.io.huggingface import from_tensors
from gossamer.io.safe_files import MAX_FAULTS_SHOWN, check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.families import answers

GGUF_SUFFIX = ".gguf"
_FAMILY = "Llama"
_NAMES = answers("gguf")[_FAMILY]
_PARTS, _CHAIN = answers("block")[_FAMILY], answers("chains")[_FAMILY][_NAMES.model]
_BLOCK_NAMES = dict(
    zip((*_NAMES.norms, *_NAMES.linears), (*_PARTS.norms, *_PARTS.linears), strict=True)
)
_OUTER = dict(zip((*_NAMES.front, *_NAMES.back), (*_CHAIN.front, *_CHAIN.back), strict=True))
ARCHITECTURE: str = _NAMES.architecture
_EMBEDDING, _NORM, _HEAD = (f"{name}.weight" for name in _OUTER)
# Settings that change what the model computes in ways this reader does not know.
_MUST_BE_ABSENT = ("expert_count", "rope.scaling.factor", "attention.sliding_window")
# The least that a setting of a type may be, what it must be below, and both in words.
_RANGES = {
    int: (1, 2**31, "a whole number from 1"),
    float: (math.ulp(0.0), math.inf, "a positive number"),
}


def is_gguf(path: AnyPath) -> bool:
    """Whether a path has the name of a gguf file."""
    return Path(path).suffix.lower() == GGUF_SUFFIX


def load_gguf(path: AnyPath, *, max_bytes: int | None = None) -> nn.Module:
    """The model in a gguf file of the Llama family as LlamaForCausalLM, fp32, in eval mode.

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
        config = llama_config(header, where)
        _check_tensors(header, config, where)
        found = header.tensors.values()
        sizes = [4 * math.prod(tensor.shape) for tensor in found]
        stored = sum(tensor.end - tensor.begin for tensor in found)
        # The largest tensor exists three times while it is dequantised and put in order.
        check_memory(sum(sizes) + 2 * max(sizes), stored, max_bytes, where)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        tensors = {}
        for tensor in sorted(found, key=lambda tensor: tensor.begin):
            weight = _dequantised(file, tensor, where)
            *block, part, _ = tensor.name.split(".")
            if part in heads:
                # Rows of pairs (2i, 2i + 1), as gguf rotates them, to the halves transformers
                # rotates.
                pairs_HP2K = weight.view(heads[part], -1, 2, weight.shape[1])
                weight = pairs_HP2K.transpose(1, 2).reshape(weight.shape)
            layer = f"{_CHAIN.layers}.{block[1]}.{_BLOCK_NAMES[part]}" if block else _OUTER[part]
            tensors[f"{layer}.weight"] = weight
    return from_tensors(_NAMES.model, config, tensors, where)


def llama_config(header: GgufHeader, where: str) -> dict[str, Any]:
    """The content of config.json behind the settings of a file."""
    settings, tensors = header.settings, header.tensors
    found = settings.get("general.architecture")
    if found != ARCHITECTURE:
        raise ArtifactError(
            f"{where}: architecture {ascii(found)[:40]} cannot be read from gguf; known:"
            f" {ARCHITECTURE!r}. Use the Hugging Face directory of the model instead."
        )
    for name in _MUST_BE_ABSENT:
        if settings.get(f"{ARCHITECTURE}.{name}") not in (None, 0, 1.0):
            raise ArtifactError(f"{where}: models with {ARCHITECTURE}.{name} cannot be read.")
    scaling = settings.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if scaling != "none":
        raise ArtifactError(f"{where}: rope scaling {ascii(scaling)[:40]} cannot be read.")

    def read(name: str, default: Any = None, kind: Any = int) -> Any:
        """A setting of the architecture, with the type and range that it must have."""
        value = settings.get(f"{ARCHITECTURE}.{name}", default)
        low, high, expected = _RANGES[kind]
        if type(value) is not kind or not low <= value < high:
            raise ArtifactError(
                f"{where}: {ARCHITECTURE}.{name} must be {expected}, got {ascii(value)[:40]}."
            )
        # fp32 in the file: the shortest decimal that is the same fp32 number is what was meant.
        return value if kind is int else float(f"{value:.7g}")

    width, num_heads = read("embedding_length"), read("attention.head_count")
    head_width = read("attention.key_length", width // num_heads)
    num_kv_heads = read("attention.head_count_kv", num_heads)
    rotated = read("rope.dimension_count", head_width)
    values = read("attention.value_length", head_width)
    if rotated != head_width or values != head_width or head_width % 2 or num_heads % num_kv_heads:
        raise ArtifactError(
            f"{where}: {num_heads} heads of {head_width}, {num_kv_heads} key heads, {rotated}"
            f" rotated and {values} value columns do not make a Llama."
        )
    if _EMBEDDING not in tensors or len(tensors[_EMBEDDING].shape) != 2:
        raise ArtifactError(f"{where}: has no matrix {_EMBEDDING!r}.")
    return {
        "architectures": [_NAMES.model],
        "model_type": ARCHITECTURE,
        "vocab_size": tensors[_EMBEDDING].shape[0],
        "hidden_size": width,
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_width,
        "max_position_embeddings": read("context_length"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon", kind=float),
        "rope_theta": read("rope.freq_base", 10000.0, float),
        "tie_word_embeddings": _HEAD not in tensors,
        "hidden_act": "silu",
        "bos_token_id": settings.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": settings.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": settings.get("tokenizer.ggml.padding_token_id"),
    }


def _check_tensors(header: GgufHeader, config: dict[str, Any], where: str) -> None:
    """Every tensor the class needs is there in its shape, and nothing else is."""
    num_layers, found = config["num_hidden_layers"], header.tensors
    if num_layers > len(found):
        raise ArtifactError(f"{where}: {num_layers} blocks announced, {len(found)} tensors stored.")
    wanted = _wanted_shapes(config)
    faults = [f"{name!a} is missing" for name in wanted if name not in found]
    faults += [f"{name!a} has no place in a Llama" for name in found if name not in wanted]
    faults += [
        f"{name!a} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
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
        shapes |= {f"blk.{number}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _dequantised(file: BinaryIO, tensor: GgufTensor, where: str) -> torch.Tensor:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise InputError(
            "the package gguf is not installed, but this file needs it: pip install 'gossamer[hf]'."
        ) from error
    file.seek(tensor.begin)
    raw = file.read(tensor.end - tensor.begin)
    if len(raw) != tensor.end - tensor.begin:
        raise ArtifactError(f"{where}: ended inside of tensor {tensor.name!a}.")
    kind = GGMLQuantizationType(tensor.kind.code)
    # The package expects these two as numbers and everything else as bytes.
    stored = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    rows: Any = np.frombuffer(raw, stored)
    rows = rows.reshape(*tensor.shape[:-1], -1) if rows.size else rows
    with np.errstate(all="ignore"):  # a scale may be infinite: what is stored is what is loaded
        values = quants.dequantize(rows, kind).astype(np.float32, copy=False)
    return torch.from_numpy(np.array(values)).reshape(tensor.shape)
