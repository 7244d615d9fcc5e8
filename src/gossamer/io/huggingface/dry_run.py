# SPDX-License-Identifier: Apache-2.0
"""Can a model of this configuration run at all? Found out before its weights are read.

Sizes are looked at one by one; whether they fit each other is found by running one layer of the
model on the meta device: shapes only, no memory and no numbers.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.nn.families import starts_after_padding

CONFIG_FILE = "config.json"
# Sizes of all known families; every one of them must be a whole number from 1 where it is set.
_SIZES = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "type_vocab_size", "dim", "n_heads",
    "hidden_dim", "n_embd", "n_head", "n_positions", "n_ctx", "n_inner", "ffn_dim",
    "word_embed_proj_dim",
)  # fmt: skip
_MAY_BE_NONE = ("num_key_value_heads", "head_dim", "n_inner")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers")
_NOT_NEGATIVE = ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon")
_POSITIVE = ("rope_theta", "factor")
_TOKENS = 7


def check_sizes(content: Mapping[str, Any]) -> None:
    """Refuse sizes that config.json gives and that cannot be."""
    for name in _SIZES:
        value = content.get(name, 1)
        absent = value is None and name in _MAY_BE_NONE
        if not absent and (type(value) is not int or value < 1):
            raise _fault(name, value, "a whole number from 1")


def check_numbers(config: Any, content: Mapping[str, Any]) -> None:
    """Refuse other numbers that cannot be.

    Args:
        config: the configuration object, defaults filled in.
        content: what config.json says.
    """
    for name in _DEPTHS:
        value = getattr(config, name, 0)
        if type(value) is not int or value < 0:
            raise _fault(name, value, "a whole number from 0")
    for name in _NOT_NEGATIVE:
        value = getattr(config, name, 0.0)
        if not (_is_number(value) and value >= 0):
            raise _fault(name, value, "a number from 0")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    for name, place in product(_POSITIVE, (content, rope if isinstance(rope, dict) else {})):
        value = place.get(name, 1.0)
        if not (_is_number(value) and value > 0):
            raise _fault(name, value, "a positive number")
    labels = getattr(config, "id2label", None)
    if labels is not None and set(labels) != set(range(len(labels))):
        raise _fault("id2label", labels, "one name for each label, counted from 0")
    _check_tokens(config)


def check_runs(make: Callable[[Any], nn.Module], config: Any) -> None:
    """Refuse a configuration whose sizes do not fit each other.

    Args:
        make: builds a model of a configuration.
        config: with one layer at most.
    """
    known = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    tokens = min([_TOKENS, *filter(None, known)])
    ids_BT = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    try:
        with torch.device("meta"):
            model = make(config).eval()
    except Exception as error:
        raise _unfit(f"the class of the model refuses it ({short(error, 200)})") from error
    try:
        with torch.device("meta"), torch.no_grad():
            model(ids_BT)
    except Exception as error:
        # What looks at numbers cannot be run without any; that is no fault of the sizes.
        if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
            return
        raise _unfit(f"a model with these sizes cannot run ({short(error, 200)})") from error


def one_layer(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration with one layer: what all others are alike to."""
    short = dict(content)
    for name in _DEPTHS:
        if type(short.get(name)) is int:
            short[name] = min(short[name], 1)
    if isinstance(short.get("layer_types"), list):
        short["layer_types"] = short["layer_types"][:1]
    return short


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_tokens(config: Any) -> None:
    padding, size = getattr(config, "pad_token_id", None), config.vocab_size
    if padding is not None and (type(padding) is not int or not -size <= padding < size):
        raise _fault("pad_token_id", padding, f"a token below {size}")
    if starts_after_padding(config):
        if padding is None or padding < 0:
            raise _fault("pad_token_id", padding, "a token from 0")
        positions = config.max_position_embeddings
        if positions <= padding + 1:
            raise _fault("max_position_embeddings", positions, f"over {padding + 1}")


def short(error: Exception, length: int) -> str:
    """An error of another package in one line."""
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:length]


def _unfit(what: str) -> ArtifactError:
    advice = f"Take the {CONFIG_FILE} that was saved with the weights."
    return ArtifactError(f"{CONFIG_FILE}: {what}. {advice}")


def _fault(name: str, value: Any, expected: str) -> ArtifactError:
    return _unfit(f"{name} is {ascii(value)[:60]}; expected {expected}")
