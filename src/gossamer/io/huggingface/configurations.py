# SPDX-License-Identifier: Apache-2.0
"""A config.json as a configuration object: declared fields, bounded numbers, nothing else.

Of a configuration only the fields that the installed classes read are used: `auto_map`,
`attn_implementation` (which can name a kernel to download) and everything else is dropped unread;
what `quantization_config` says of a sparse format is the business of `compressed_tensors`.
Configurations inside of a configuration, such as that of the image tower, are treated alike.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from gossamer.errors import ArtifactError
from gossamer.io.huggingface.auto_tables import (
    KnownClass,
    check_family,
    config_class,
    undeclared_fields,
)
from gossamer.io.huggingface.quiet import quiet_transformers
from gossamer.nn.families import answers
from gossamer.nn.families.text import starts_after_padding

CONFIG_FILE = "config.json"
# Families of our own table; their sizes must be whole numbers from 1 where they are set.
_TABLE = frozenset(classes.model_type for classes in answers("classes").values())
_SIZES = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "type_vocab_size", "dim", "n_heads",
    "hidden_dim", "n_embd", "n_head", "n_positions", "n_ctx", "n_inner", "ffn_dim",
    "word_embed_proj_dim",
)  # fmt: skip
_MAY_BE_NONE = ("num_key_value_heads", "head_dim", "n_inner")
# The same of any family; what else is None or a list there is for the class to judge.
_ANY_SIZES = re.compile(
    r"^(vocab_size|hidden_size|intermediate_size|d_model|d_kv|d_ff|n_embd|n_heads?"
    r"|num_heads|patch_size|num_channels|image_size|(\w+_)?(attention|key_value|kv)_heads)$"
)
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers")
_NOT_NEGATIVE = re.compile(r"(^|_)(head_dim|eps|epsilon|windows?|window_sizes?|sliding_window)$")
_WINDOW = re.compile(r"(^|_)windows?(_sizes?)?$|_chunk_size$")
_POSITIVE = ("rope_theta", "factor")
# Fields of older files that configuration classes still translate.
_LEGACY_FIELDS = {"rope_theta", "rope_scaling", "num_labels", "torch_dtype"}
# How a call goes about it, not what it computes: ours to choose.
_CALLS = {"return_dict", "chunk_size_feed_forward", "output_hidden_states", "output_attentions"}
# What could name code, a file or a place in the network, in any version.
_NEVER = re.compile(r"implementation|auto_map|trust|quantization|_paths?$|pretrained_|^use_kernels")
_DTYPE = re.compile(r"(^|_)dtype$")
_DTYPES = ("float32", "float16", "bfloat16", "float64")
# How many parts there are: each costs time when a model is built, whatever its tensors weigh.
_COUNTS = re.compile(
    r"^(num|n)_(?!labels|\w*positions?|ctx|embd|inner|vocab|\w*embeddings)|(^|_)(layers?|depths?|blocks|groups|repeats|iters|iterations|steps)$"
)
_LAYER_COUNTS = (*DEPTHS, "num_layers")
MAX_LAYERS = 10_000
MAX_PARTS = 65_536
MAX_LABELS = 100_000
MAX_NUMBER = 2**31
_MAX_NESTED = 4
_ENDLESS = "__float__"

Content = Mapping[str, Any]


def make_config(known: KnownClass, content: Content, max_layers: int) -> Any:
    """The configuration object of a class, from declared fields with bounded values only."""
    fields = _fields(known.config, known.model, content, max_layers, 0)
    try:
        with quiet_transformers():
            config = known.config(**fields)
    except Exception as error:
        reason = short(error, 300)
        raise ArtifactError(f"{CONFIG_FILE}: transformers refuses it ({reason}).") from error
    _check_numbers(config, fields)
    for part in vars(config).values():
        # Some classes fill in what a file leaves out with a model of another package.
        check_family(str(getattr(part, "model_type", "")), CONFIG_FILE)
    return config


def one_layer(content: Content) -> dict[str, Any]:
    """The same configuration with one layer: what all others are alike to."""
    less = dict(content)
    for name in DEPTHS:
        if type(less.get(name)) is int:
            less[name] = min(less[name], 1)
    if isinstance(less.get("layer_types"), list):
        less["layer_types"] = less["layer_types"][:1]
    return less


def in_table(model_type: str) -> bool:
    """Whether a family is one that `gossamer.nn.families` knows about."""
    return model_type in _TABLE


def short(error: Exception, length: int) -> str:
    """An error of another package in one line."""
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:length]


def unfit(what: str) -> ArtifactError:
    """The error for a configuration that cannot be that of a model."""
    advice = f"Take the {CONFIG_FILE} that was saved with the weights."
    return ArtifactError(f"{CONFIG_FILE}: {what}. {advice}")


def _fields(
    config: Any, model: Any, content: Content, max_layers: int, depth: int
) -> dict[str, Any]:
    """What is used of `content`, checked; configurations inside of it are cleaned alike."""
    if depth > _MAX_NESTED:
        raise ArtifactError(f"{CONFIG_FILE}: more than {_MAX_NESTED} nested configurations.")
    table = in_table(config.model_type)
    declared = {field.name for field in dataclasses.fields(config)}
    names = (declared | _LEGACY_FIELDS) - _CALLS
    if not table:
        names |= undeclared_fields(config, model) - _CALLS
    fields = {
        name: value
        for name, value in content.items()
        if (name in names or (not table and _is_plain(config, name, value)))
        and name not in _CALLS
        and not _NEVER.search(name)
    }
    inner = dict(getattr(config, "sub_configs", {}) or {})
    for name, value in fields.items():
        nested = _nested_class(inner.get(name), name, value)
        if nested is not None:
            cleaned = _fields(nested, None, value, max_layers, depth + 1)
            fields[name] = cleaned | {"model_type": value.get("model_type", nested.model_type)}
            continue
        _check_value(name, value, max_layers)
        _check_size(name, value, table)
        fields[name] = _read(value)
    heads, shared = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if type(heads) is int and type(shared) is int and heads % shared:
        raise _fault("num_key_value_heads", shared, f"a divisor of {heads} heads")
    return fields


def _is_plain(config: Any, name: str, value: Any) -> bool:
    """Whether an undeclared field is a number for the class, which can name nothing."""
    return (
        isinstance(value, int | float | None)
        and name.isidentifier()
        and not name.startswith("_")
        and not hasattr(config, name)
    )


def _read(value: Any) -> Any:
    """A value of config.json; transformers writes an infinite number as an object."""
    if isinstance(value, list):
        return [_read(item) for item in value]
    if isinstance(value, dict) and value.keys() == {_ENDLESS}:
        return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value[_ENDLESS]), value)
    return value


def _nested_class(kind: Any, name: str, value: Any) -> Any:
    """The class of a configuration inside of another; None for every other value."""
    if not isinstance(value, dict):
        return None
    named = value.get("model_type")
    if kind is None and not isinstance(named, str):
        return None
    if kind is None or not dataclasses.is_dataclass(kind):
        # Any family may stand there.
        if not isinstance(named, str):
            raise _fault(f"{name}.model_type", named, "the name of a family")
        return config_class(named, CONFIG_FILE)
    return kind


def _check_value(name: str, value: Any, max_layers: int) -> None:
    if _DTYPE.search(name) and isinstance(value, str) and value not in _DTYPES:
        raise ArtifactError(f"{CONFIG_FILE}: {name} {ascii(value)[:40]} is none of {_DTYPES}.")
    if name in ("dtype", "torch_dtype") and not isinstance(value, str | None):
        raise ArtifactError(f"{CONFIG_FILE}: {name} {ascii(value)[:40]} is none of {_DTYPES}.")
    limit = MAX_NUMBER
    if name in _LAYER_COUNTS:
        limit = min(max_layers, MAX_LAYERS)
    elif name == "num_labels":
        limit = MAX_LABELS
    elif _COUNTS.search(name):
        limit = MAX_PARTS
    for number in _numbers(value):
        if not -limit <= number <= limit:
            raise ArtifactError(f"{CONFIG_FILE}: {name} is {number}, the limit is {limit}.")


def _numbers(value: Any) -> Iterator[int | float]:
    """Every number in a value, however deep; parsing has bounded how many there are."""
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            pending.extend(found.values())
        elif isinstance(found, list):
            pending.extend(found)
        elif isinstance(found, int | float):
            yield found


def _check_size(name: str, value: Any, table: bool) -> None:
    if table and name in _SIZES:
        absent = value is None and name in _MAY_BE_NONE
        if not absent and (type(value) is not int or value < 1):
            raise _fault(name, value, "a whole number from 1")
    elif _ANY_SIZES.search(name):
        if isinstance(value, bool | float | str):
            raise _fault(name, value, "a whole number from 1")
        if any(number < 1 for number in _numbers(value)):
            raise _fault(name, value, "a whole number from 1")
    elif name in _LAYER_COUNTS and any(number < 0 for number in _numbers(value)):
        raise _fault(name, value, "a whole number from 0")
    elif _NOT_NEGATIVE.search(name) and any(number < 0 for number in _numbers(value)):
        raise _fault(name, value, "nothing below 0")
    elif _WINDOW.search(name) and isinstance(value, float | str):
        raise _fault(name, value, "a whole number")


def _check_numbers(config: Any, content: Content) -> None:
    """Refuse other numbers that cannot be.

    Args:
        config: the configuration object, defaults filled in.
        content: what config.json says.
    """
    table = in_table(config.model_type)
    for name in DEPTHS if table else ():
        value = getattr(config, name, 0)
        if type(value) is not int or value < 0:
            raise _fault(name, value, "a whole number from 0")
    for name in ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon") if table else ():
        value = getattr(config, name, 0.0)
        if not (_is_number(value) and value >= 0):
            raise _fault(name, value, "a number from 0")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    for name, place in product(_POSITIVE, (content, rope if isinstance(rope, dict) else {})):
        value = place.get(name, 1.0)
        if (table or value is not None) and not (_is_number(value) and value > 0):
            raise _fault(name, value, "a positive number")
    labels = getattr(config, "id2label", None)
    if labels is not None and set(labels) != set(range(len(labels))):
        raise _fault("id2label", labels, "one name for each label, counted from 0")
    _check_tokens(config)


def _check_tokens(config: Any) -> None:
    padding, size = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
    if type(size) is not int:
        return
    if padding is not None and (type(padding) is not int or not -size <= padding < size):
        raise _fault("pad_token_id", padding, f"a token below {size}")
    if starts_after_padding(config):
        if padding is None or padding < 0:
            raise _fault("pad_token_id", padding, "a token from 0")
        positions = config.max_position_embeddings
        if positions <= padding + 1:
            raise _fault("max_position_embeddings", positions, f"over {padding + 1}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fault(name: str, value: Any, expected: str) -> ArtifactError:
    return unfit(f"{name} is {ascii(value)[:60]}; expected {expected}")
