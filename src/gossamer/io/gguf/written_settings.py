# SPDX-License-Identifier: Apache-2.0
"""The settings of a gguf file for the configuration of a model: `settings.py` the other way round.

What is written here is read back and compared with the configuration before the file is kept
(`writing.py`), so a field that a file cannot hold is an error that names it.
"""

from typing import Any

import numpy as np
import torch

from gossamer.errors import InputError
from gossamer.io.gguf.settings import ROPE_FREQS, ROPE_LONG, ROPE_SHORT

_PATTERN = "attention.sliding_window_pattern"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "vocab_size": "vocab_size",
}


def settings_of(names: Any, facts: Any, config: Any) -> dict[str, Any]:
    """Settings by their names without the architecture.

    Args:
        names: the family's `GgufNames`.
        facts: its `DecoderFacts`.
        config: of the model, as transformers has it.
    """

    def field(name: str) -> Any:
        return getattr(config, names.renamed.get(name, name), None)

    found = {setting: field(name) for setting, name in _SIZES.items()}
    if found["feed_forward_length"] is None:  # GPT-2 leaves it out where it is the usual one
        found["feed_forward_length"] = 4 * found["embedding_length"]
    heads = found["attention.head_count"]
    head_dim = field("head_dim") or found["embedding_length"] // heads
    found["attention.head_count_kv"] = field("num_key_value_heads") or heads
    found["attention.key_length"] = found["attention.value_length"] = head_dim
    rms = "" if facts.norm == "layer" else "rms_"
    found[f"attention.layer_norm_{rms}epsilon"] = float(field("eps"))
    for name, setting in names.settings.items():
        value = getattr(config, name, None)
        if value is not None:
            found[setting] = [t == _LOCAL for t in value] if setting == _PATTERN else value
    if facts.rotary:
        found |= _rope_settings(_rope(config), head_dim)
    return found


def rope_tensors(config: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Factors of frequencies, which files hold as tensors."""
    rope = _rope(config) or {}
    kind = rope.get("rope_type")
    if kind == "longrope":
        both = {ROPE_SHORT: rope["short_factor"], ROPE_LONG: rope["long_factor"]}
        return {name: np.array(factors, np.float32) for name, factors in both.items()}
    if kind == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        plain = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2).double() / head_dim)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        return {ROPE_FREQS: (plain / scaled.double()).float().numpy()}
    return {}


def _rope(config: Any) -> dict[str, Any] | None:
    rope = getattr(config, "rope_parameters", None)
    return rope if rope is None or "rope_type" in rope else rope[_GLOBAL]


def _rope_settings(rope: dict[str, Any] | None, head_dim: int) -> dict[str, Any]:
    if rope is None:
        return {}
    rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    found: dict[str, Any] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": rotated,
    }
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        original = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = original
        for end in ("beta_fast", "beta_slow"):
            if rope.get(end) is not None:
                found[f"rope.scaling.yarn_{end}"] = float(rope[end])
    elif kind not in ("default", "linear", "llama3", "longrope"):
        raise InputError(
            f"gguf: positions of the type {kind!r} cannot be written to gguf; expected default,"
            " linear, yarn, llama3 or longrope. Use the format 'dense'."
        )
    return found
