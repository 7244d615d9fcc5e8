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


_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_BATCH_NORM = "num_features eps momentum affine track_running_stats"
# Layers, and the names of their arguments.
_ARGUMENTS: dict[type[nn.Module], str] = {
    nn.Linear: "in_features out_features bias",
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Embedding: "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq"
    " sparse",
    nn.LayerNorm: "normalized_shape eps elementwise_affine bias",
    nn.RMSNorm: "normalized_shape eps elementwise_affine",
    nn.GroupNorm: "num_groups num_channels eps affine",
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.ReLU: "inplace",
    nn.LeakyReLU: "negative_slope inplace",
    nn.ELU: "alpha inplace",
    nn.GELU: "approximate",
    nn.SiLU: "inplace",
    nn.Mish: "inplace",
    nn.Hardswish: "inplace",
    nn.Softplus: "beta threshold",
    nn.Tanh: "",
    nn.Sigmoid: "",
    nn.Softmax: "dim",
    nn.LogSoftmax: "dim",
    nn.Dropout: "p inplace",
    nn.Dropout2d: "p inplace",
    nn.Identity: "",
    nn.Flatten: "start_dim end_dim",
    nn.MaxPool2d: "kernel_size stride padding dilation return_indices ceil_mode",
    nn.AvgPool2d: "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    nn.AdaptiveAvgPool2d: "output_size",
    nn.MultiheadAttention: "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim"
    " batch_first",
    nn.TransformerEncoderLayer: "d_model nhead dim_feedforward dropout activation layer_norm_eps"
    " batch_first norm_first bias",
}
# Rules that are other than those of the name.
_OTHER_RULES: dict[type[nn.Module], dict[str, ArgumentRule]] = {
    nn.Conv1d: {"padding": PADDING},
    nn.Conv2d: {"padding": PADDING},
    nn.RMSNorm: {"eps": _or_none(REAL)},
}
# None is no legal activation, so an unknown function makes the layer indescribable.
_ACTIVATIONS = {functional.relu: "relu", functional.gelu: "gelu"}
# Arguments that are no attribute of the same name.
_READ: dict[type[nn.Module], dict[str, Read]] = {
    nn.LayerNorm: {"bias": lambda m: m.bias is not None or not m.elementwise_affine},
    nn.MultiheadAttention: {
        "bias": lambda m: m.in_proj_bias is not None,
        "add_bias_kv": lambda m: m.bias_k is not None,
    },
    nn.TransformerEncoderLayer: {
        "d_model": lambda m: m.self_attn.embed_dim,
        "nhead": lambda m: m.self_attn.num_heads,
        "dim_feedforward": lambda m: m.linear1.out_features,
        "dropout": lambda m: m.dropout.p,
        "activation": lambda m: _ACTIVATIONS.get(m.activation),
        "layer_norm_eps": lambda m: m.norm1.eps,
        "batch_first": lambda m: m.self_attn.batch_first,
        "bias": lambda m: m.linear1.bias is not None,
    },
}
LAYERS = {
    kind.__name__: Layer(
        kind,
        {name: _RULES[name] for name in names.split()} | _OTHER_RULES.get(kind, {}),
        _READ.get(kind, {"bias": lambda m: m.bias is not None}),
    )
    for kind, names in _ARGUMENTS.items()
}

CONTAINERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
}
# Takes one described layer and, optionally, one described norm.
ENCODER = "TransformerEncoder"
ENCODER_ARGS = {name: _RULES[name] for name in ("num_layers", "enable_nested_tensor")}


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
