# SPDX-License-Identifier: Apache-2.0
"""Models as gguf files, which llama.cpp and its kin read.

What is written is read back by our own reader before the file is put in its place: settings must
give the configuration that the model has, and every tensor must have its place and shape. Rows of
queries and keys go into the order of llama.cpp, norms and GPT-2's matrices as it has them.

Legend: H heads, P half of a head's width, K columns.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.io.gguf.blocks import GGUF_TYPES, Stored, stored_as
from gossamer.io.gguf.file import checked_places, dequantised
from gossamer.io.gguf.header import open_gguf
from gossamer.io.gguf.settings import ROPE_TENSORS, GgufModel, read_settings, with_rope
from gossamer.io.gguf.written_settings import rope_tensors, settings_of
from gossamer.io.gguf.written_tokenizer import tokenizer_settings
from gossamer.nn.families import answers

# Fields that change nothing of what a model computes, or that the file says in its own way.
_SILENT = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "attn_pdrop", "bos_token_id",
        "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_pdrop", "eos_token_id",
        "hidden_dropout", "id2label", "initializer_range", "is_llama_config", "label2id",
        "max_window_layers", "output_attentions", "output_hidden_states", "pad_token_id",
        "pretraining_tp", "problem_type", "reorder_and_upcast_attn", "resid_pdrop", "return_dict",
        "rope_interleaved", "scale_attn_by_inverse_layer_idx", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "torch_dtype", "transformers.js_config", "transformers_version", "use_cache",
    }
)  # fmt: skip
_MOSTLY = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}


@dataclass(frozen=True)
class Written:
    """What became of the tensors of a model.

    Attributes:
        types: how many tensors are stored in each type.
        lost_zeros: weights that were 0 and are not any more.
        changed: weights that are others than before.
        error: the largest difference, as a part of the largest weight of its tensor.
        has_tokenizer: whether the file holds one.
    """

    types: dict[str, int]
    lost_zeros: int
    changed: int
    error: float
    has_tokenizer: bool


def write_gguf(
    model: Any,
    tensors: Mapping[str, Callable[[], torch.Tensor]],
    path: Path,
    *,
    kind: str = "auto",
    beside: Mapping[str, bytes],
) -> Written:
    """Write the gguf file of a decoder of transformers; it appears whole or not at all.

    The content of the file is in memory until it is written.

    Args:
        model: gives class and configuration.
        tensors: by the names of transformers, dense; a tied head is left out.
        path: the file.
        kind: of the matrices; "auto" is for each the smallest type that changes no number.
        beside: files beside the model; the tokenizer among them goes into the file.

    Raises:
        InputError: no family with a row for gguf, a field or tokenizer that a file cannot hold.
        ResourceError: it cannot be written there.
    """
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
    except ImportError as error:
        raise InputError(
            "the package gguf is not installed, but writing gguf needs it: pip install"
            " 'gossamer[hf]'."
        ) from error
    if kind not in GGUF_TYPES:
        raise InputError(f"gguf: the type must be one of {', '.join(GGUF_TYPES)}; got {kind!r}.")
    family = _family_of(model)
    names, facts, config = answers("gguf")[family], answers("decoder")[family], model.config
    settings = settings_of(names, facts, config)
    further = tokenizer_settings(beside, config)
    described = _described(names, facts, settings, config)
    unfinished = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    writer = GGUFWriter(str(unfinished), names.architecture)
    types: dict[str, int] = {}
    lost, changed, worst = 0, 0, 0.0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, factors in rope_tensors(config).items():
            writer.add_tensor(name, factors)
        for name, dense in tensors.items():
            in_file = described.name_in_file(name)
            stored = _stored(dense(), name, in_file, described, kind)
            writer.add_tensor(in_file, stored.data, raw_dtype=GGMLQuantizationType[stored.kind])
            types[stored.kind] = types.get(stored.kind, 0) + 1
            lost, changed = lost + stored.lost_zeros, changed + stored.changed
            worst = max(worst, stored.error)
        for key, value in settings.items():
            if value is not None:
                _add(writer, f"{names.architecture}.{key}", value)
        for key, value in further.items():
            _add(writer, key, value)
        writer.add_quantization_version(2)
        writer.add_file_type(_MOSTLY[max(types, key=lambda each: types[each])])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        _check_readable(unfinished, config)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as failure:
        raise ResourceError(
            f"{path}: cannot be written ({failure.strerror or failure}). What was there before is"
            " unchanged. Free some space or choose another path."
        ) from failure
    finally:
        writer.close()
        unfinished.unlink(missing_ok=True)
    return Written(types, lost, changed, worst, further["tokenizer.ggml.model"] != "none")


def _family_of(model: Any) -> str:
    """Name of the family whose files hold this class."""
    kind = type(model).__name__
    known = {names.model: family for family, names in answers("gguf").items()}
    if kind not in known:
        raise InputError(
            f"{kind}: cannot be written to gguf; known: {', '.join(sorted(known))}. Use the format"
            " 'dense', or 'onnx'."
        )
    return known[kind]


def _described(names: Any, facts: Any, settings: dict[str, Any], config: Any) -> GgufModel:
    """How the tensors of the model are called in the file."""
    parts = dict(zip(names.norms, facts.block.norms, strict=True))
    parts |= dict(zip(names.linears, facts.block.linears, strict=True)) | dict(names.more)
    heads, kv_heads = settings["attention.head_count"], settings["attention.head_count_kv"]
    return GgufModel(
        names,
        facts.chain,
        parts,
        config.to_dict(),
        num_layers=settings["block_count"],
        heads={"attn_q": heads, "attn_k": kv_heads, "attn_qkv": heads},
        norm_offset=1.0 if facts.norm == "rms + 1" else 0.0,
    )


def _stored(
    weight: torch.Tensor, name: str, in_file: str, described: GgufModel, kind: str
) -> Stored:
    if in_file == name:
        raise InputError(
            f"{name}: has no place in a gguf file of {described.names.architecture!r}. Use the"
            " format 'dense'."
        )
    ordered = _as_in_file(weight.detach().float(), in_file, described)
    try:
        return stored_as(ordered.contiguous(), kind)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _as_in_file(weight: torch.Tensor, name: str, described: GgufModel) -> torch.Tensor:
    """Rows in the order of llama.cpp, norms as it stores them."""
    part = name.split(".")[-2]
    if part.endswith("norm"):
        return weight + described.norm_offset
    heads = described.heads.get(part)
    if heads is None or not described.names.rows:
        return weight
    if described.names.rows == "pairs":
        halves_H2PK = weight.reshape(heads, 2, -1, *weight.shape[1:])
        return halves_H2PK.transpose(1, 2).reshape(weight.shape)
    parts_H3DK = weight.reshape(heads, 3, -1, *weight.shape[1:])
    return parts_H3DK.transpose(0, 1).reshape(weight.shape)


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _check_readable(path: Path, config: Any) -> None:
    """What our reader makes of the file must be the model that was written."""
    file, header = open_gguf(path)
    with file:
        described = read_settings(header, "gguf")
        rope = {
            name: dequantised(file, header.tensors[name], "gguf")
            for name in ROPE_TENSORS
            if name in header.tensors
        }
        try:
            described = with_rope(described, rope, "gguf")
            checked_places(header, described, "gguf")
        except ArtifactError as error:
            raise InputError(f"gguf files cannot hold this model: {error}") from error
    wanted, read = (_settled(made) for made in (config, type(config)(**described.config)))
    for name in sorted(set(wanted) & set(read) - _SILENT):
        if not _same(wanted[name], read[name]):
            raise InputError(
                f"config.json: {name} is {str(wanted[name])[:200]}, and a gguf file of"
                f" {described.names.architecture!r} would be read with {str(read[name])[:200]}. Use"
                " the format 'dense'."
            )


def _settled(config: Any) -> dict[str, Any]:
    """Fields of a configuration; what a class works out from another field is worked out."""
    fields: dict[str, Any] = config.to_dict()
    if "n_inner" in fields:
        fields["n_inner"] = fields["n_inner"] or 4 * fields["n_embd"]
    rope = fields.get("rope_parameters") or {}
    if "partial_rotary_factor" in rope:
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        rotated = int(head_dim * rope["partial_rotary_factor"])
        fields["rope_parameters"] = {**rope, "partial_rotary_factor": rotated}
        fields.pop("partial_rotary_factor", None)
    return fields


def _same(one: Any, two: Any) -> bool:
    """Equal, with numbers as float32, which files hold."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        keys = {key for key in (*one, *two) if one.get(key) is not None or two.get(key) is not None}
        return all(_same(one.get(key), two.get(key)) for key in keys)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(two, numbers) and not isinstance(one, bool):
        return bool(np.isclose(one, two, rtol=1e-6, atol=0.0))
    return bool(one == two)
