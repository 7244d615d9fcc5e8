# SPDX-License-Identifier: Apache-2.0
"""The models behind the golden files: every pattern, form and precision, and the odd cases.

`make.py` wrote them once; tests read the files and never make these models again, since random
numbers and products may differ between versions of torch and CPUs. Add an entry for what is new,
never change one.
"""

from collections.abc import Callable

import torch
from torch import nn

import gossamer
from gossamer.nn.layers import Conv2d, Linear, MaskedConv2d, MaskedLinear
from gossamer.nn.rounding import round_layer
from gossamer.patterns import parse_pattern
from gossamer.zoo import GPT, TinyEncoder

# pattern, density, (rows, columns); the two densities of unstructured are stored in two formats.
PATTERNS = {
    "bitmask": ("unstructured", 0.5, (24, 48)),
    "csr": ("unstructured", 0.02, (24, 256)),
    "nm": ("2:16", None, (24, 48)),
    "vnm": ("24:2:8", None, (24, 48)),
    "nmg": ("nmg:2:4:2", None, (24, 48)),
    "block": ("block:8x8", 0.3, (24, 48)),
    "all_kept": ("unstructured", 1.0, (8, 16)),
    "one": ("unstructured", 1.0, (1, 1)),
    "empty": ("unstructured", 0.0, (3, 5)),
}


def _linears(dtype: torch.dtype = torch.float32, rounding: str | None = None) -> nn.Module:
    """One layer for each pattern and form."""
    model = nn.ModuleDict()
    for name, (text, density, shape) in PATTERNS.items():
        pattern = parse_pattern(text)
        for form, build in (("masked", MaskedLinear), ("compact", Linear)):
            linear = nn.Linear(shape[1], shape[0], bias=form == "masked", dtype=dtype)
            if density in (0.0, 1.0):
                mask = torch.full(shape, bool(density))
            else:
                mask = pattern.project(linear.weight.detach().float().abs(), density)
            layer = build.from_dense(linear, mask, pattern)
            if rounding is not None:
                round_layer(layer, rounding)
            model[f"{name}_{form}"] = layer
    return model


def _convs() -> nn.Module:
    model = nn.ModuleDict()
    for form, build in (("masked", MaskedConv2d), ("compact", Conv2d)):
        for name, conv in (
            ("three", nn.Conv2d(4, 8, 3, padding=1)),
            ("grouped", nn.Conv2d(8, 8, (1, 3), stride=2, groups=2, bias=False)),
        ):
            weight = conv.weight.detach().flatten(1)
            mask = parse_pattern("unstructured").project(weight.abs(), 0.25)
            model[f"{name}_{form}"] = build.from_dense(conv, mask, parse_pattern("unstructured"))
    return model


def _special_values() -> nn.Module:
    linear = nn.Linear(8, 4)
    with torch.no_grad():
        linear.weight[0, :4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[0, :4] = mask[2, 5] = True
    return nn.Sequential(Linear.from_dense(linear, mask, parse_pattern("unstructured")))


def _tied() -> nn.Module:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    gossamer.sparsify(model, sparsity=0.75)
    gossamer.compact(model)
    return model


def _dense_rounded() -> nn.Module:
    model = nn.ModuleDict()
    for to in ("int8", "int4", "int4_offset", "bf16"):
        model[f"linear_{to}"] = nn.Linear(63, 40)
        model[f"table_{to}"] = nn.Embedding(50, 33)
        for layer in (model[f"linear_{to}"], model[f"table_{to}"]):
            round_layer(layer, to)
    return model


def _zoo(model: nn.Module, form: str) -> nn.Module:
    gossamer.sparsify(model, sparsity=0.8)
    if form == "compact":
        gossamer.compact(model)
    return model


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    gossamer.sparsify(model, sparsity=0.5)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "fp32": _linears,
    "fp64": lambda: _linears(torch.float64),
    "fp16": lambda: _linears(torch.float16),
    "bf16": lambda: _linears(torch.bfloat16),
    "int8": lambda: _linears(rounding="int8"),
    "int4": lambda: _linears(rounding="int4"),
    "convs": _convs,
    "special_values": _special_values,
    "tied": _tied,
    "dense_rounded": _dense_rounded,
    "attention": _attention,
    "encoder_masked": lambda: _zoo(
        TinyEncoder(20, 3, width=16, num_heads=2, num_layers=1, ffn_width=24), "masked"
    ),
    "gpt_compact": lambda: _zoo(
        GPT(20, width=16, num_heads=2, num_layers=1, context=8, ffn_width=24), "compact"
    ),
}
