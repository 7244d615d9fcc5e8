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
from gossamer.io.safe_files.limits import MAX_DIM, MAX_DIMS

MAX_LAYERS = 1024


@dataclass(frozen=True)
class Kind:
    """What an argument may be."""

    expected: str
    accepts: Callable[[Any], bool]


def _is_int(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_real(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.expected} or null", lambda v: v is None or kind.accepts(v))


def _choice(*values: str) -> Kind:
    return Kind(f"one of {', '.join(values)}", lambda v: v in values)


def _sizes(low: int) -> Kind:
    return Kind(
        f"an integer >= {low} or a list of them",
        lambda v: (
            _is_int(v, low, MAX_DIM)
            or (
                type(v) is tuple
                and len(v) <= MAX_DIMS
                and all(_is_int(size, low, MAX_DIM) for size in v)
            )
        ),
    )


SIZE = Kind("an integer in [0, 2^40]", lambda v: _is_int(v, 0, MAX_DIM))
COUNT = Kind("an integer in [1, 2^40]", lambda v: _is_int(v, 1, MAX_DIM))
DEPTH = Kind(f"an integer in [1, {MAX_LAYERS}]", lambda v: _is_int(v, 1, MAX_LAYERS))
DIM = Kind("an integer in [-8, 8]", lambda v: _is_int(v, -MAX_DIMS, MAX_DIMS))
INDEX = Kind("an integer", lambda v: _is_int(v, -MAX_DIM, MAX_DIM))
FLAG = Kind("true or false", lambda v: type(v) is bool)
REAL = Kind("a finite number", _is_real)
SIZES = _sizes(0)
STEPS = _sizes(1)
PADDING = Kind(
    "a size, a list of sizes, 'same' or 'valid'",
    lambda v: v in ("same", "valid") or SIZES.accepts(v),
)

Read = Callable[[Any], Argument]


@dataclass(frozen=True)
class Layer:
    """One row of the table. `read` has the arguments that are no attribute of the same name."""

    build: type[nn.Module]
    args: dict[str, Kind]
    read: dict[str, Read]


def _has_bias(module: Any) -> Argument:
    return module.bias is not None


def _conv(build: type[nn.Module]) -> Layer:
    args = {
        "in_channels": SIZE,
        "out_channels": SIZE,
        "kernel_size": STEPS,
        "stride": STEPS,
        "padding": PADDING,
        "dilation": STEPS,
        "groups": COUNT,
        "bias": FLAG,
        "padding_mode": _choice("zeros", "reflect", "replicate", "circular"),
    }
    return Layer(build, args, {"bias": _has_bias})


def _norm(build: type[nn.Module]) -> Layer:
    args = {
        "num_features": SIZE,
        "eps": REAL,
        "momentum": _or_none(REAL),
        "affine": FLAG,
        "track_running_stats": FLAG,
    }
    return Layer(build, args, {})


def _simple(build: type[nn.Module], **args: Kind) -> Layer:
    return Layer(build, args, {})


def _activation_name(module: Any) -> Argument:
    # None is no legal activation, so an unknown function makes the layer indescribable.
    names = {functional.relu: "relu", functional.gelu: "gelu"}
    return names.get(module.activation)


ENCODER_LAYER = Layer(
    nn.TransformerEncoderLayer,
    {
        "d_model": COUNT,
        "nhead": COUNT,
        "dim_feedforward": COUNT,
        "dropout": REAL,
        "activation": _choice("relu", "gelu"),
        "layer_norm_eps": REAL,
        "batch_first": FLAG,
        "norm_first": FLAG,
        "bias": FLAG,
    },
    {
        "d_model": lambda m: m.self_attn.embed_dim,
        "nhead": lambda m: m.self_attn.num_heads,
        "dim_feedforward": lambda m: m.linear1.out_features,
        "dropout": lambda m: m.dropout.p,
        "activation": _activation_name,
        "layer_norm_eps": lambda m: m.norm1.eps,
        "batch_first": lambda m: m.self_attn.batch_first,
        "bias": lambda m: m.linear1.bias is not None,
    },
)
ATTENTION = Layer(
    nn.MultiheadAttention,
    {
        "embed_dim": COUNT,
        "num_heads": COUNT,
        "dropout": REAL,
        "bias": FLAG,
        "add_bias_kv": FLAG,
        "add_zero_attn": FLAG,
        "kdim": COUNT,
        "vdim": COUNT,
        "batch_first": FLAG,
    },
    {
        "bias": lambda m: m.in_proj_bias is not None,
        "add_bias_kv": lambda m: m.bias_k is not None,
    },
)

LAYERS: dict[str, Layer] = {
    "Linear": Layer(
        nn.Linear, {"in_features": SIZE, "out_features": SIZE, "bias": FLAG}, {"bias": _has_bias}
    ),
    "Conv1d": _conv(nn.Conv1d),
    "Conv2d": _conv(nn.Conv2d),
    "Embedding": _simple(
        nn.Embedding,
        num_embeddings=SIZE,
        embedding_dim=SIZE,
        padding_idx=_or_none(INDEX),
        max_norm=_or_none(REAL),
        norm_type=REAL,
        scale_grad_by_freq=FLAG,
        sparse=FLAG,
    ),
    "LayerNorm": Layer(
        nn.LayerNorm,
        {"normalized_shape": SIZES, "eps": REAL, "elementwise_affine": FLAG, "bias": FLAG},
        {"bias": lambda m: m.bias is not None or not m.elementwise_affine},
    ),
    "RMSNorm": _simple(
        nn.RMSNorm, normalized_shape=SIZES, eps=_or_none(REAL), elementwise_affine=FLAG
    ),
    "GroupNorm": _simple(nn.GroupNorm, num_groups=COUNT, num_channels=SIZE, eps=REAL, affine=FLAG),
    "BatchNorm1d": _norm(nn.BatchNorm1d),
    "BatchNorm2d": _norm(nn.BatchNorm2d),
    "ReLU": _simple(nn.ReLU, inplace=FLAG),
    "LeakyReLU": _simple(nn.LeakyReLU, negative_slope=REAL, inplace=FLAG),
    "ELU": _simple(nn.ELU, alpha=REAL, inplace=FLAG),
    "GELU": _simple(nn.GELU, approximate=_choice("none", "tanh")),
    "SiLU": _simple(nn.SiLU, inplace=FLAG),
    "Mish": _simple(nn.Mish, inplace=FLAG),
    "Hardswish": _simple(nn.Hardswish, inplace=FLAG),
    "Softplus": _simple(nn.Softplus, beta=REAL, threshold=REAL),
    "Tanh": _simple(nn.Tanh),
    "Sigmoid": _simple(nn.Sigmoid),
    "Softmax": _simple(nn.Softmax, dim=_or_none(DIM)),
    "LogSoftmax": _simple(nn.LogSoftmax, dim=_or_none(DIM)),
    "Dropout": _simple(nn.Dropout, p=REAL, inplace=FLAG),
    "Dropout2d": _simple(nn.Dropout2d, p=REAL, inplace=FLAG),
    "Identity": _simple(nn.Identity),
    "Flatten": _simple(nn.Flatten, start_dim=DIM, end_dim=DIM),
    "MaxPool2d": _simple(
        nn.MaxPool2d,
        kernel_size=STEPS,
        stride=STEPS,
        padding=SIZES,
        dilation=STEPS,
        return_indices=FLAG,
        ceil_mode=FLAG,
    ),
    "AvgPool2d": _simple(
        nn.AvgPool2d,
        kernel_size=STEPS,
        stride=STEPS,
        padding=SIZES,
        ceil_mode=FLAG,
        count_include_pad=FLAG,
        divisor_override=_or_none(COUNT),
    ),
    "AdaptiveAvgPool2d": _simple(nn.AdaptiveAvgPool2d, output_size=STEPS),
    "MultiheadAttention": ATTENTION,
    "TransformerEncoderLayer": ENCODER_LAYER,
}

CONTAINERS: dict[str, type[nn.Module]] = {
    "Sequential": nn.Sequential,
    "ModuleList": nn.ModuleList,
    "ModuleDict": nn.ModuleDict,
}
# Takes one described layer and, optionally, one described norm.
ENCODER = "TransformerEncoder"
ENCODER_ARGS: dict[str, Kind] = {"num_layers": DEPTH, "enable_nested_tensor": FLAG}


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
