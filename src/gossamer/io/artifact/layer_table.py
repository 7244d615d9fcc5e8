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


def _is_int(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_real(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _or_none(kind: ArgumentRule) -> ArgumentRule:
    return ArgumentRule(f"{kind.expected} or null", lambda v: v is None or kind.accepts(v))


def _choice(*values: str) -> ArgumentRule:
    return ArgumentRule(f"one of {', '.join(values)}", lambda v: v in values)


def _sizes(low: int) -> ArgumentRule:
    return ArgumentRule(
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


SIZE = ArgumentRule("an integer in [0, 2^40]", lambda v: _is_int(v, 0, MAX_DIM))
COUNT = ArgumentRule("an integer in [1, 2^40]", lambda v: _is_int(v, 1, MAX_DIM))
DEPTH = ArgumentRule(f"an integer in [1, {MAX_LAYERS}]", lambda v: _is_int(v, 1, MAX_LAYERS))
DIM = ArgumentRule("an integer in [-8, 8]", lambda v: _is_int(v, -MAX_DIMS, MAX_DIMS))
INDEX = ArgumentRule("an integer", lambda v: _is_int(v, -MAX_DIM, MAX_DIM))
FLAG = ArgumentRule("true or false", lambda v: type(v) is bool)
REAL = ArgumentRule("a finite number", _is_real)
SIZES = _sizes(0)
STEPS = _sizes(1)
PADDING = ArgumentRule(
    "a size, a list of sizes, 'same' or 'valid'",
    lambda v: v in ("same", "valid") or SIZES.accepts(v),
)

Read = Callable[[Any], Argument]


@dataclass(frozen=True)
class Layer:
    """One row of the table. `read` has the arguments that are no attribute of the same name."""

    build: type[nn.Module]
    args: dict[str, ArgumentRule]
    read: dict[str, Read]


def _layer(
    build: type[nn.Module], read: dict[str, Read] | None = None, /, **args: ArgumentRule
) -> Layer:
    if read is None:
        read = {"bias": lambda module: module.bias is not None}
    return Layer(build, args, read)


def _conv(build: type[nn.Module]) -> Layer:
    return _layer(
        build,
        in_channels=SIZE,
        out_channels=SIZE,
        kernel_size=STEPS,
        stride=STEPS,
        padding=PADDING,
        dilation=STEPS,
        groups=COUNT,
        bias=FLAG,
        padding_mode=_choice("zeros", "reflect", "replicate", "circular"),
    )


def _norm(build: type[nn.Module]) -> Layer:
    return _layer(
        build,
        num_features=SIZE,
        eps=REAL,
        momentum=_or_none(REAL),
        affine=FLAG,
        track_running_stats=FLAG,
    )


# None is no legal activation, so an unknown function makes the layer indescribable.
_ACTIVATIONS = {functional.relu: "relu", functional.gelu: "gelu"}
_ROWS = (
    _layer(nn.Linear, in_features=SIZE, out_features=SIZE, bias=FLAG),
    _conv(nn.Conv1d),
    _conv(nn.Conv2d),
    _layer(
        nn.Embedding,
        num_embeddings=SIZE,
        embedding_dim=SIZE,
        padding_idx=_or_none(INDEX),
        max_norm=_or_none(REAL),
        norm_type=REAL,
        scale_grad_by_freq=FLAG,
        sparse=FLAG,
    ),
    _layer(
        nn.LayerNorm,
        {"bias": lambda m: m.bias is not None or not m.elementwise_affine},
        normalized_shape=SIZES,
        eps=REAL,
        elementwise_affine=FLAG,
        bias=FLAG,
    ),
    _layer(nn.RMSNorm, normalized_shape=SIZES, eps=_or_none(REAL), elementwise_affine=FLAG),
    _layer(nn.GroupNorm, num_groups=COUNT, num_channels=SIZE, eps=REAL, affine=FLAG),
    _norm(nn.BatchNorm1d),
    _norm(nn.BatchNorm2d),
    _layer(nn.ReLU, inplace=FLAG),
    _layer(nn.LeakyReLU, negative_slope=REAL, inplace=FLAG),
    _layer(nn.ELU, alpha=REAL, inplace=FLAG),
    _layer(nn.GELU, approximate=_choice("none", "tanh")),
    _layer(nn.SiLU, inplace=FLAG),
    _layer(nn.Mish, inplace=FLAG),
    _layer(nn.Hardswish, inplace=FLAG),
    _layer(nn.Softplus, beta=REAL, threshold=REAL),
    _layer(nn.Tanh),
    _layer(nn.Sigmoid),
    _layer(nn.Softmax, dim=_or_none(DIM)),
    _layer(nn.LogSoftmax, dim=_or_none(DIM)),
    _layer(nn.Dropout, p=REAL, inplace=FLAG),
    _layer(nn.Dropout2d, p=REAL, inplace=FLAG),
    _layer(nn.Identity),
    _layer(nn.Flatten, start_dim=DIM, end_dim=DIM),
    _layer(
        nn.MaxPool2d,
        kernel_size=STEPS,
        stride=STEPS,
        padding=SIZES,
        dilation=STEPS,
        return_indices=FLAG,
        ceil_mode=FLAG,
    ),
    _layer(
        nn.AvgPool2d,
        kernel_size=STEPS,
        stride=STEPS,
        padding=SIZES,
        ceil_mode=FLAG,
        count_include_pad=FLAG,
        divisor_override=_or_none(COUNT),
    ),
    _layer(nn.AdaptiveAvgPool2d, output_size=STEPS),
    _layer(
        nn.MultiheadAttention,
        {
            "bias": lambda m: m.in_proj_bias is not None,
            "add_bias_kv": lambda m: m.bias_k is not None,
        },
        embed_dim=COUNT,
        num_heads=COUNT,
        dropout=REAL,
        bias=FLAG,
        add_bias_kv=FLAG,
        add_zero_attn=FLAG,
        kdim=COUNT,
        vdim=COUNT,
        batch_first=FLAG,
    ),
    _layer(
        nn.TransformerEncoderLayer,
        {
            "d_model": lambda m: m.self_attn.embed_dim,
            "nhead": lambda m: m.self_attn.num_heads,
            "dim_feedforward": lambda m: m.linear1.out_features,
            "dropout": lambda m: m.dropout.p,
            "activation": lambda m: _ACTIVATIONS.get(m.activation),
            "layer_norm_eps": lambda m: m.norm1.eps,
            "batch_first": lambda m: m.self_attn.batch_first,
            "bias": lambda m: m.linear1.bias is not None,
        },
        d_model=COUNT,
        nhead=COUNT,
        dim_feedforward=COUNT,
        dropout=REAL,
        activation=_choice("relu", "gelu"),
        layer_norm_eps=REAL,
        batch_first=FLAG,
        norm_first=FLAG,
        bias=FLAG,
    ),
)
LAYERS = {row.build.__name__: row for row in _ROWS}

CONTAINERS: dict[str, type[nn.Module]] = {
    "Sequential": nn.Sequential,
    "ModuleList": nn.ModuleList,
    "ModuleDict": nn.ModuleDict,
}
# Takes one described layer and, optionally, one described norm.
ENCODER = "TransformerEncoder"
ENCODER_ARGS: dict[str, ArgumentRule] = {"num_layers": DEPTH, "enable_nested_tensor": FLAG}


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
