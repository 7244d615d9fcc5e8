# SPDX-License-Identifier: Apache-2.0
"""Llama-family gguf files as transformers models with fp32 weights, and the tokenizer inside.

Quantised weights are dequantised: what comes out is the model the file stands for, not the one it
was quantised from. Names, shapes and settings are checked against each other before any tensor is
read; nothing in the file is executed.

The tokenizer becomes the files transformers reads. Byte-level BPE only. How text is cut before
merging is a name in the file; it is looked up in a closed table, because a wrong cut gives other
tokens without any error.

Legend: H query heads, G key and value heads, P half of a head's width.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.gguf.header import GgufHeader, GgufTensor, open_gguf
from gossamer.io.huggingface import from_tensors
from gossamer.io.safe_files import MAX_FAULTS_SHOWN
from gossamer.io.safe_files.checks import check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.documents import pretty_json
from gossamer.nn.families import answers

_MODEL = "gpt2"
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# Name in the file to the steps of the pre-tokenizer.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    "gpt-2": [_BYTE_LEVEL],
}
_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_tokenizer_files(path: os.PathLike[str] | str) -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json` of the tokenizer in a gguf file."""
    file, header = open_gguf(path)
    file.close()
    settings, where = header.settings, str(path)
    model, cut = (settings.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model != _MODEL or not isinstance(cut, str) or cut not in _PRE_TOKENIZERS:
        raise ArtifactError(
            f"{where}: tokenizer {ascii(model)[:40]} with pre-tokenizer {ascii(cut)[:40]} cannot be"
            f" read; known: {_MODEL!r} with {', '.join(map(repr, _PRE_TOKENIZERS))}."
        )
    tokens = _texts(settings, "tokenizer.ggml.tokens", where)
    return {
        "tokenizer.json": _tokenizer(settings, tokens, where),
        "tokenizer_config.json": _config(settings, tokens, where),
    }


def _tokenizer(settings: dict[str, Any], tokens: list[str], where: str) -> bytes:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ArtifactError(f"{where}: a token appears twice in tokenizer.ggml.tokens.")
    steps = _PRE_TOKENIZERS[settings["tokenizer.ggml.pre"]]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, settings, where),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(vocabulary, settings, where),
        },
    }
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def _config(settings: dict[str, Any], tokens: list[str], where: str) -> bytes:
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    context = settings.get("llama.context_length")
    if type(context) is int:
        content["model_max_length"] = context
    for name, key in _SPECIAL.items():
        number = settings.get(f"tokenizer.ggml.{key}")
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < len(tokens):
            raise ArtifactError(
                f"{where}: tokenizer.ggml.{key} is {ascii(number)[:40]}, but there are"
                f" {len(tokens)} tokens."
            )
        content[name] = tokens[number]
    template = settings.get("tokenizer.chat_template")
    if isinstance(template, str):
        # Text for whoever formats chats; it is not looked into here.
        content["chat_template"] = template
    return pretty_json(content)


def _merges(vocabulary: dict[str, int], settings: dict[str, Any], where: str) -> list[list[str]]:
    merges = []
    for number, text in enumerate(_texts(settings, "tokenizer.ggml.merges", where)):
        parts = text.split(" ")
        if len(parts) != 2 or any(part not in vocabulary for part in (*parts, "".join(parts))):
            raise ArtifactError(
                f"{where}: tokenizer.ggml.merges[{number}] {text[:40]!a} must be two tokens whose"
                " union is a token."
            )
        merges.append(parts)
    return merges


def _added(tokens: list[str], settings: dict[str, Any], where: str) -> list[dict[str, Any]]:
    kinds = settings.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise ArtifactError(f"{where}: tokenizer.ggml.token_type must have one entry per token.")
    return [
        {
            "id": number,
            "content": tokens[number],
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": kind == _CONTROL,
        }
        for number, kind in enumerate(kinds)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _texts(settings: dict[str, Any], key: str, where: str) -> list[str]:
    value = settings.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ArtifactError(f"{where}: {key} is missing or no list of texts.")
    return value


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
