# SPDX-License-Identifier: Apache-2.0
"""What the settings of a gguf file say, as the configuration of a transformers model.

A file names its architecture; the rows of families say which setting becomes which field. A setting
that changes what a model computes in a way that is not read here is an error, never skipped.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from gossamer.errors import ArtifactError
from gossamer.io.gguf.header import GgufHeader
from gossamer.nn.families import Chain, answers

_BY_ARCHITECTURE = {names.architecture: family for family, names in answers("gguf").items()}
# Tensors that are numbers of a configuration: factors of frequencies.
ROPE_FREQS, ROPE_SHORT, ROPE_LONG = ROPE_TENSORS = (
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
)
# What all files of Llama 3 with scaled frequencies were made with; the factors in the file show it.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_WINDOW, _WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
# The least that a setting of a type may be, what it must be below, and both in words.
_RANGES: dict[type, tuple[float, float, str]] = {
    int: (1, 2**31, "a whole number from 1"),
    float: (math.ulp(0.0), math.inf, "a positive number"),
    bool: (0, 2, "true or false"),
}


@dataclass(frozen=True)
class GgufModel:
    """A model as a file describes it.

    Attributes:
        names: the family's names in gguf files.
        chain: of its class.
        parts: names of a block's tensors in the file -> its modules.
        config: the content of config.json.
        num_layers: blocks.
        heads: of the tensors whose rows belong to heads, by the name in the file.
        norm_offset: what files add to the weights of norms.
        used: tensors of the file that are no weights, and were read.
    """

    names: Any
    chain: Chain
    parts: dict[str, str]
    config: dict[str, Any]
    num_layers: int
    heads: dict[str, int]
    norm_offset: float
    used: frozenset[str] = frozenset()

    def name_in_file(self, name: str) -> str:
        """Of a Parameter of the model; its own name, which no file has, if there is none."""
        module, _, own = name.rpartition(".")
        inside = f"{self.chain.layers}."
        if module.startswith(inside):
            number, _, part = module[len(inside) :].partition(".")
            found = next((n for n, m in self.parts.items() if m == part), None)
            return name if found is None else f"blk.{number}.{found}.{own}"
        outside = (*self.chain.front, *self.chain.back)
        in_file = (*self.names.front, *self.names.back)
        return f"{in_file[outside.index(module)]}.{own}" if module in outside else name


@dataclass(frozen=True)
class _Settings:
    """Settings of one architecture."""

    content: dict[str, Any]
    architecture: str
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        """A setting as it is."""
        return self.content.get(f"{self.architecture}.{name}", default)

    def read(self, name: str, default: Any = None, kind: Any = int) -> Any:
        """A setting with the type and range that it must have."""
        value = self.get(name, default)
        low, high, expected = _RANGES[kind]
        if type(value) is not kind or not low <= value < high:
            raise ArtifactError(
                f"{self.where}: {self.architecture}.{name} must be {expected}, got"
                f" {ascii(value)[:40]}."
            )
        # fp32 in the file: the shortest decimal that is the same fp32 number is what was meant.
        return float(f"{value:.7g}") if kind is float else value


def read_settings(header: GgufHeader, where: str) -> GgufModel:
    """The model that the settings of a file describe."""
    architecture = header.settings.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _BY_ARCHITECTURE:
        raise ArtifactError(
            f"{where}: architecture {ascii(architecture)[:40]} cannot be read from gguf; known:"
            f" {', '.join(map(repr, _BY_ARCHITECTURE))}. Use the Hugging Face directory of the"
            " model instead."
        )
    family = _BY_ARCHITECTURE[architecture]
    names, facts = answers("gguf")[family], answers("decoder")[family]
    settings = _Settings(header.settings, architecture, where)
    for name in ("expert_count", _WINDOW, _WINDOW_PATTERN):
        if name not in names.settings.values() and settings.get(name) not in (None, 0, 1.0):
            raise ArtifactError(f"{where}: models with {architecture}.{name} cannot be read.")
    sizes = _sizes(settings, header, names, layer_norm=facts.norm == "layer")
    config = {names.renamed.get(name, name): value for name, value in sizes.items()}
    config |= {
        "architectures": [names.model],
        "model_type": answers("classes")[family].model_type,
        **names.fixed,
        **_more_fields(settings, names, sizes),
    }
    for name in ("bos", "eos", "padding"):
        token = header.settings.get(f"tokenizer.ggml.{name}_token_id")
        config[f"{name.removesuffix('ding')}_token_id"] = token
    if facts.rotary:
        config["rope_parameters"] = _rope(settings, names, sizes["head_dim"])
    parts = dict(zip(names.norms, facts.block.norms, strict=True))
    parts |= dict(zip(names.linears, facts.block.linears, strict=True)) | dict(names.more)
    num_heads, num_kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    return GgufModel(
        names,
        facts.chain,
        parts,
        config,
        num_layers=sizes["num_hidden_layers"],
        heads={"attn_q": num_heads, "attn_k": num_kv_heads, "attn_qkv": num_heads},
        norm_offset=1.0 if facts.norm == "rms + 1" else 0.0,
    )


def _sizes(
    settings: _Settings, header: GgufHeader, names: Any, *, layer_norm: bool
) -> dict[str, Any]:
    """Fields that every family has, as Llama calls them; "eps" for that of the norms."""
    read, where = settings.read, settings.where
    width, num_heads = read("embedding_length"), read("attention.head_count")
    head_width = read("attention.key_length", width // num_heads)
    num_kv_heads = read("attention.head_count_kv", num_heads)
    values = read("attention.value_length", head_width)
    if values != head_width or num_heads % num_kv_heads or head_width < 1:
        raise ArtifactError(
            f"{where}: {num_heads} heads of {head_width}, {num_kv_heads} key heads and {values}"
            f" value columns do not make a {names.model}."
        )
    embedding, head = (f"{name}.weight" for name in (names.front[0], names.back[-1]))
    if embedding not in header.tensors or len(header.tensors[embedding].shape) != 2:
        raise ArtifactError(f"{where}: has no matrix {embedding!r}.")
    return {
        "vocab_size": header.tensors[embedding].shape[0],
        "hidden_size": width,
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_width,
        "max_position_embeddings": read("context_length"),
        "eps": read(f"attention.layer_norm_{'' if layer_norm else 'rms_'}epsilon", kind=float),
        "tie_word_embeddings": head not in header.tensors,
    }


def _more_fields(settings: _Settings, names: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """What the row of a family names, where the file has it."""
    fields: dict[str, Any] = {}
    num_layers = sizes["num_hidden_layers"]
    for field, name in names.settings.items():
        found = settings.get(name)
        if found is None:
            continue
        if name == _WINDOW_PATTERN:
            fields[field] = _layer_types(found, num_layers, f"{settings.where}: {name}")
        else:
            kind = type(found) if type(found) in _RANGES else int
            fields[field] = settings.read(name, kind=kind)
    if names.wide_scale_at:
        wide = sizes["hidden_size"] // sizes["num_attention_heads"]
        is_wide = num_layers == names.wide_scale_at
        fields["query_pre_attn_scalar"] = wide if is_wide else sizes["head_dim"]
    return fields


def _rope(settings: _Settings, names: Any, head_width: int) -> dict[str, Any]:
    """The field rope_parameters, but for what tensors hold."""
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": settings.read("rope.freq_base", 10000.0, float),
    }
    rotated = settings.read("rope.dimension_count", head_width)
    if (rotated != head_width and not names.partial) or rotated > head_width or rotated % 2:
        raise ArtifactError(
            f"{settings.where}: {rotated} rotated columns in heads of {head_width} do not make a"
            f" {names.model}."
        )
    if names.partial:
        rope["partial_rotary_factor"] = rotated / head_width
    scaling = settings.get("rope.scaling.type", "none")
    factor = settings.get("rope.scaling.factor")
    if scaling == "linear" or (scaling == "none" and factor not in (None, 0.0, 1.0)):
        rope |= {"rope_type": "linear", "factor": settings.read("rope.scaling.factor", kind=float)}
    elif scaling == "yarn":
        rope |= _yarn(settings)
    elif scaling not in ("none", "longrope"):
        raise ArtifactError(f"{settings.where}: rope scaling {ascii(scaling)[:40]} cannot be read.")
    if names.local_theta is None:
        return rope
    return {_LOCAL: {"rope_type": "default", "rope_theta": names.local_theta}, _GLOBAL: rope}


# What changes yarn, and the value at which it changes nothing.
_YARN_PLAIN = {
    "attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_log_multiplier": 0.0,
}


def _yarn(settings: _Settings) -> dict[str, Any]:
    """Frequencies that are stretched the more, the slower they are."""
    for name, plain in _YARN_PLAIN.items():
        found = settings.get(f"rope.scaling.{name}", plain)
        if found != plain:
            raise ArtifactError(
                f"{settings.where}: yarn with rope.scaling.{name} {ascii(found)[:40]} cannot be"
                f" read; expected {plain} or nothing."
            )
    original = "rope.scaling.original_context_length"
    rope = {
        "rope_type": "yarn",
        "factor": settings.read("rope.scaling.factor", kind=float),
        "original_max_position_embeddings": settings.read(original),
    }
    for end in ("beta_fast", "beta_slow"):
        if settings.get(f"rope.scaling.yarn_{end}") is not None:
            rope[end] = settings.read(f"rope.scaling.yarn_{end}", kind=float)
    return rope


def _layer_types(pattern: Any, num_layers: int, where: str) -> list[str]:
    """Which layers are local: a list with an entry per layer, or every how many one is not."""
    if type(pattern) is int and pattern >= 1:
        pattern = [bool((number + 1) % pattern) for number in range(num_layers)]
    fits = isinstance(pattern, list) and len(pattern) == num_layers
    if not fits or not all(type(entry) is bool for entry in pattern):
        raise ArtifactError(f"{where} must have true or false for each of {num_layers} blocks.")
    return [_LOCAL if entry else _GLOBAL for entry in pattern]


def with_rope(described: GgufModel, tensors: dict[str, torch.Tensor], where: str) -> GgufModel:
    """The same model with the factors of frequencies that lie in tensors."""
    if not tensors:
        return described
    rope = dict(described.config.get("rope_parameters") or {})
    if set(tensors) == {ROPE_FREQS} and rope.get("rope_type") == "default":
        rope |= _llama3(rope, tensors[ROPE_FREQS], described.config["head_dim"], where)
    elif set(tensors) == {ROPE_SHORT, ROPE_LONG} and described.names.long_rope:
        rope |= {
            "rope_type": "longrope",
            "short_factor": tensors[ROPE_SHORT].flatten().tolist(),
            "long_factor": tensors[ROPE_LONG].flatten().tolist(),
        }
    else:
        raise ArtifactError(
            f"{where}: {', '.join(tensors)} have no place in a {described.names.model}."
        )
    config = described.config | {"rope_parameters": rope}
    return replace(described, config=config, used=frozenset(tensors))


def _llama3(
    rope: dict[str, Any], factors: torch.Tensor, head_dim: int, where: str
) -> dict[str, Any]:
    """The settings behind the factors of Llama 3, which no file holds; they must give the same."""
    factors = factors.flatten().double()
    found = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
    frequencies = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2).double() / head_dim)
    turns = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    expected = 1 / (smooth + (1 - smooth) / found["factor"])
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-4):
        raise ArtifactError(
            f"{where}: the factors in {ROPE_FREQS!r} are not those of Llama 3, and no others can be"
            " read."
        )
    return found
