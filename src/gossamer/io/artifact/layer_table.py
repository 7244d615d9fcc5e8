# SPDX-License-Identifier: Apache-2.0
"""The torch.nn layers a manifest may name, with the arguments each one takes.

Closed: nothing outside this table is ever built, and every argument is checked before the
constructor sees it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional

from gossamer.io.artifact.manifest import Argument
from gossamer.io.safe_files import MAX_DIM, MAX_DIMS

MAX_LAYERS = 1024


@dataclass(frozen=True)
class ArgumentRule:
    """What an argument may be."""

    expected: str
    accepts: Callable[[Any], bool]


def _whole(expected: str, low: int, high: int) -> ArgumentRule:
    return ArgumentRule(expected, lambda v: type(v) is int and low <= v <= high)


def _or_none(kind: ArgumentRule) -> ArgumentRule:
    return ArgumentRule(f"{kind.expected} or null", lambda v: v is None or kind.accepts(v))


def _choice(*values: str) -> ArgumentRule:
    return ArgumentRule(f"one of {', '.join(values)}", lambda v: v in values)


def _sizes(low: int) -> ArgumentRule:
    one = _whole("", low, MAX_DIM)
    return ArgumentRule(
        f"an integer >= {low} or a list of them",
        lambda v: (
            len(v) <= MAX_DIMS and all(map(one.accepts, v)) if type(v) is tuple else one.accepts(v)
        ),
    )


SIZE = _whole("an integer in [0, 2^40]", 0, MAX_DIM)
COUNT = _whole("an integer in [1, 2^40]", 1, MAX_DIM)
DIM = _whole("an integer in [-8, 8]", -MAX_DIMS, MAX_DIMS)
FLAG = ArgumentRule("true or false", lambda v: type(v) is bool)
REAL = ArgumentRule("a finite number", lambda v: type(v) in (int, float) and math.isfinite(v))
SIZES = _sizes(0)
STEPS = _sizes(1)
PADDING = ArgumentRule(
    "a size, a list of sizes, 'same' or 'valid'",
    lambda v: v in ("same", "valid") or SIZES.accepts(v),
)
# What an argument may be wherever no row says otherwise; names with one rule are one text.
_RULES = {
    name: rule
    for names, rule in (
        ("in_features out_features in_channels out_channels num_features", SIZE),
        ("num_embeddings embedding_dim num_channels", SIZE),
        ("groups num_groups embed_dim num_heads kdim vdim d_model nhead dim_feedforward", COUNT),
        ("num_layers", _whole(f"an integer in [1, {MAX_LAYERS}]", 1, MAX_LAYERS)),
        ("start_dim end_dim", DIM),
        ("dim", _or_none(DIM)),
        ("padding_idx", _or_none(_whole("an integer", -MAX_DIM, MAX_DIM))),
        ("bias inplace affine track_running_stats elementwise_affine", FLAG),
        ("scale_grad_by_freq sparse return_indices ceil_mode count_include_pad", FLAG),
        ("add_bias_kv add_zero_attn batch_first norm_first enable_nested_tensor", FLAG),
        ("eps layer_norm_eps norm_type negative_slope alpha beta threshold p dropout", REAL),
        ("momentum max_norm", _or_none(REAL)),
        ("normalized_shape padding", SIZES),
        ("kernel_size stride dilation output_size", STEPS),
        ("divisor_override", _or_none(COUNT)),
        ("padding_mode", _choice("zeros", "reflect", "replicate", "circular")),
        ("approximate", _choice("none", "tanh")),
        ("activation", _choice("relu", "gelu")),
    )
    for name in names.split()
}

Read = Callable[[Any], Argument]


@dataclass(frozen=True)
class Layer:
    """One row of the table. `read` has the arguments that are no attribute of the same name."""

    build: type[nn.Module]
    args: dict[str, ArgumentRule]
    read: dict[str, Read]


def _layer(build: type[nn.Module], names: str = "", /, **other: ArgumentRule | Read) -> Layer:
    """A row: names of arguments, and what is special about one, its rule or how it is read."""
    rules = {name: _RULES[name] for name in names.split()}
    read: dict[str, Read] = {"bias": lambda module: module.bias is not None}
    for name, special in other.items():
        if isinstance(special, ArgumentRule):
            rules[name] = special
        else:
            read[name] = special
    return Layer(build, rules, read)


_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_BATCH_NORM = "num_features eps momentum affine track_running_stats"
# None is no legal activation, so an unknown function makes the layer indescribable.
_ACTIVATIONS = {functional.relu: "relu", functional.gelu: "gelu"}
_ROWS = (
    _layer(nn.Linear, "in_features out_features bias"),
    _layer(nn.Conv1d, _CONV, padding=PADDING),
    _layer(nn.Conv2d, _CONV, padding=PADDING),
    _layer(
        nn.Embedding,
        "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse",
    ),
    _layer(
        nn.LayerNorm,
        "normalized_shape eps elementwise_affine bias",
        bias=lambda m: m.bias is not None or not m.elementwise_affine,
    ),
    _layer(nn.RMSNorm, "normalized_shape eps elementwise_affine", eps=_or_none(REAL)),
    _layer(nn.GroupNorm, "num_groups num_channels eps affine"),
    _layer(nn.BatchNorm1d, _BATCH_NORM),
    _layer(nn.BatchNorm2d, _BATCH_NORM),
    _layer(nn.ReLU, "inplace"),
    _layer(nn.LeakyReLU, "negative_slope inplace"),
    _layer(nn.ELU, "alpha inplace"),
    _layer(nn.GELU, "approximate"),
    _layer(nn.SiLU, "inplace"),
    _layer(nn.Mish, "inplace"),
    _layer(nn.Hardswish, "inplace"),
    _layer(nn.Softplus, "beta threshold"),
    _layer(nn.Tanh),
    _layer(nn.Sigmoid),
    _layer(nn.Softmax, "dim"),
    _layer(nn.LogSoftmax, "dim"),
    _layer(nn.Dropout, "p inplace"),
    _layer(nn.Dropout2d, "p inplace"),
    _layer(nn.Identity),
    _layer(nn.Flatten, "start_dim end_dim"),
    _layer(nn.MaxPool2d, "kernel_size stride padding dilation return_indices ceil_mode"),
    _layer(nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad divisor_override"),
    _layer(nn.AdaptiveAvgPool2d, "output_size"),
    _layer(
        nn.MultiheadAttention,
        "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first",
        bias=lambda m: m.in_proj_bias is not None,
        add_bias_kv=lambda m: m.bias_k is not None,
    ),
    _layer(
        nn.TransformerEncoderLayer,
        "d_model nhead dim_feedforward dropout activation layer_norm_eps batch_first norm_first"
        " bias",
        d_model=lambda m: m.self_attn.embed_dim,
        nhead=lambda m: m.self_attn.num_heads,
        dim_feedforward=lambda m: m.linear1.out_features,
        dropout=lambda m: m.dropout.p,
        activation=lambda m: _ACTIVATIONS.get(m.activation),
        layer_norm_eps=lambda m: m.norm1.eps,
        batch_first=lambda m: m.self_attn.batch_first,
        bias=lambda m: m.linear1.bias is not None,
    ),
)
LAYERS = {row.build.__name__: row for row in _ROWS}

CONTAINERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
}
# Takes one described layer and, optionally, one described norm.
ENCODER = "TransformerEncoder"
ENCODER_ARGS = _layer(nn.TransformerEncoder, "num_layers enable_nested_tensor").args


def read_args(layer: Layer, module: nn.Module) -> dict[str, Argument] | None:
    """The constructor arguments of `module`, None if one of them cannot be described."""
    args: dict[str, Argument] = {}
    for name, kind in layer.args.items():
        read = layer.read.get(name)
        try:
            value = getattr(module, name) if read is None else read(module)
        except AttributeError:
            return None  # a user put another module where the setting is read
        value = tuple(value) if isinstance(value, list | tuple) else value
        if not kind.accepts(value):
            return None
        args[name] = value
    return args
