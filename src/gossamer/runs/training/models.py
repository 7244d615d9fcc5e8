# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage names, built: the model for the sizes of the data, and its optimizer."""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, ResourceError
from gossamer.nn import quantize_tables
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.tables import table_of
from gossamer.nn.layers.tables.late_rows import untouched
from gossamer.recipes.stages.train import (
    OPTIMIZER_OWNERS,
    Architecture,
    OptimizerSettings,
    QuantizedTables,
)
from gossamer.training.optim import LAMB, LARS, SGD, AdamW, SideBySide
from gossamer.training.optim.tables import TableAdagrad, TableAdam, TableSGD
from gossamer.zoo import DLRM, GPT, MLP, TinyEncoder
from gossamer.zoo.graph_nets import GraphNet, Recommender
from gossamer.zoo.small_nets import ShiftNet, SqueezeNet
from gossamer.zoo.switch import SwitchGPT

__all__ = [
    "DEFAULT_CONTEXT",
    "build_model",
    "build_optimizer",
    "context_of",
    "quantize",
    "table_sizes",
]

DEFAULT_CONTEXT = 128
_DEFAULT_HEADS = 4
# From so many pixels of a side on, SqueezeNet halves images as often as published.
_LARGE = 64
_FLOAT_BITS = 32
_CLASSES: dict[str, Any] = {"adamw": AdamW, "sgd": SGD, "lamb": LAMB, "lars": LARS}
_PLAIN: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def _adagrad(tables: list[nn.Parameter], lr: float) -> torch.optim.Adagrad:
    """torch's, whose sums take memory where they are written: ranks may hold some rows only."""
    held = [table.data for table in tables]
    for table in tables:
        table.data = table.data.new_empty(0, table.shape[1])
    made = torch.optim.Adagrad(tables, lr=lr)
    for table, data in zip(tables, held, strict=True):
        table.data = data
        on_cpu = data.device.type == "cpu"
        made.state[table]["sum"] = untouched(*data.shape) if on_cpu else torch.zeros_like(data)
    return made


# By rows: their steps touch those rows only that have a gradient.
_BY_ROWS: dict[str, Any] = {
    "adagrad": _adagrad,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.SparseAdam,
}
# The same for tables in few bits; Adagrad holds one number for a row.
_BY_QUANTIZED_ROWS: dict[str, Any] = {"adagrad": TableAdagrad, "sgd": TableSGD, "adam": TableAdam}

# Numbers of state for each weight of a table.
_MOMENTS = {"adagrad": 1, "sgd": 0, "adam": 2}


def build_model(
    architecture: Architecture, sizes: Mapping[str, Any], num_cuts: int = 1
) -> nn.Module:
    """The model, with fresh weights from the global generator.

    Args:
        architecture: from the recipe.
        sizes: of inputs and outputs, from the task.
        num_cuts: equal parts that tables are cut into, of which this machine holds one.
    """
    a = architecture
    if a.name == "mlp":
        hidden = [a.width] * a.layers
        return MLP((sizes["inputs"], *hidden, sizes["classes"]), a.activation or "relu")
    if a.name == "cnn":
        return _cnn(a, sizes)
    if a.name in ("squeezenet", "shift-net"):
        ends = sizes["channels"], sizes["classes"]
        if a.name == "shift-net":
            return ShiftNet(*ends, width=a.width, blocks=a.layers)
        small = min(sizes["height"], sizes["width"]) < _LARGE
        return SqueezeNet(*ends, width=a.width, small=small)
    if a.name == "dlrm":
        given = {"bottom": a.bottom, "top": a.top, "pooling": a.pooling}
        own: Any = {name: value for name, value in given.items() if value is not None}
        _check_tables(sizes["rows"], a.width, num_cuts)
        return DLRM(sizes["numbers"], sizes["rows"], width=a.width, **own)
    if a.name == "lightgcn":
        return Recommender(sizes["nodes"], width=a.width, hops=a.layers)
    if a.name not in ("gpt", "encoder"):
        own = {name: v for name in ("heads", "dropout") if (v := getattr(a, name)) is not None}
        kind: Any = {"layer": a.name, "width": a.width, "num_layers": a.layers}
        return GraphNet(sizes["features"], sizes["classes"], **kind, **own)
    blocks: Any = {"width": a.width, "num_heads": a.heads or _DEFAULT_HEADS, "num_layers": a.layers}
    if a.name == "gpt" and a.experts is not None:
        own = a.experts.model_dump()
        own["num_experts"] = own.pop("count")
        tied = bool(a.tied)
        return SwitchGPT(sizes["vocabulary"], **blocks, context=context_of(a), tied=tied, **own)
    if a.name == "gpt":
        return GPT(sizes["vocabulary"], **blocks, context=context_of(a), tied=bool(a.tied))
    return TinyEncoder(
        sizes["vocabulary"],
        sizes["classes"],
        **blocks,
        ffn_width=4 * a.width,
        max_tokens=context_of(a),
    )


def _check_tables(rows: Sequence[int], width: int, num_cuts: int) -> None:
    """Refuse tables that this machine cannot hold, before the system ends the process for them."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    needed = 4 * width * sum(rows) // num_cuts
    if needed > memory:
        raise ResourceError(
            f"model: {len(rows)} tables with {sum(rows):,} rows of {width} numbers take {needed:,}"
            f" bytes, and this machine has {memory:,}. Use a smaller data.clicks.size, a larger"
            " floor of vocabularies, or a smaller model.width."
        )


def context_of(architecture: Architecture) -> int:
    """Tokens of a window."""
    return architecture.context or DEFAULT_CONTEXT


def _cnn(a: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    """Stages of convolution, BatchNorm, ReLU and pooling by two; channels double in every stage."""
    side = min(sizes["height"], sizes["width"])
    if side >> (a.layers - 1) < 2:
        raise InputError(
            f"model.layers: {a.layers} stages halve images of {sizes['height']} x {sizes['width']}"
            " to nothing. Use fewer layers."
        )
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    channels = sizes["channels"]
    for stage in range(a.layers):
        width = a.width * 2**stage
        # BatchNorm has a bias of its own.
        parts[f"conv{stage}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        parts[f"norm{stage}"] = nn.BatchNorm2d(width)
        parts[f"act{stage}"] = nn.ReLU()
        if stage + 1 < a.layers:
            parts[f"pool{stage}"] = nn.MaxPool2d(2)
        channels = width
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flat"] = nn.Flatten()
    parts["head"] = nn.Linear(channels, sizes["classes"])
    return nn.Sequential(parts)


def quantize(settings: QuantizedTables, model: nn.Module) -> None:
    """Train the tables of `model` in few bits, in place; those of an older run go on as they are.

    Raises:
        InputError: there is no table, or an older run has trained them in other bits.
    """
    bits = None if settings.bits == _FLOAT_BITS else settings.bits
    wanted = {**settings.model_dump(), "bits": bits}
    older = [table for table in map(table_of, model.modules()) if table is not None]
    if not older:
        quantize_tables(model, **wanted)
    for table in older:
        found = (table.form, table.bits, table.granularity)
        has_shadow = table.rows().data.is_floating_point()
        expected = ("trained", bits, settings.granularity if bits else "table")
        if found != expected or has_shadow != (settings.shadow or bits is None):
            without = (", without a shadow", "")
            raise InputError(
                f"quantize_tables: --model has a {table.form} table with"
                f" {table.bits or _FLOAT_BITS} bits and a scale by"
                f" {table.granularity}{without[has_shadow]}; expected a trained one with"
                f" {settings.bits} bits by {settings.granularity}{without[settings.shadow]}. Say in"
                " the recipe what the model has."
            )


def _has_quantized_tables(model: nn.Module) -> bool:
    """Whether rows of tables are moved by the optimizers of `gossamer.training.optim.tables`."""
    return any(table_of(module) is not None for module in model.modules())


def build_optimizer(
    settings: OptimizerSettings, model: nn.Module, compaction: str = "auto"
) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters of `model`; biases, norms and scales never decay.

    Nor do they get a rate of their own from LAMB or LARS, as both were published. With plain fp32
    state AdamW and SGD are torch's own: they let weights grow back, and our AdamW takes the same
    steps. Tables that have an optimizer of their own get sparse gradients.
    """
    tables = [] if settings.tables is None else _tables(model)
    # Kept values of a compact layer are a vector, but they are a weight all the same.
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in model.parameters():
        if param.requires_grad and not any(param is table for table in tables):
            is_weight = param.ndim > 1 or id(param) in values
            (weights if is_weight else others).append(param)
    decays = ((weights, settings.weight_decay), (others, 0.0))
    groups = [{"params": params, "weight_decay": decay} for params, decay in decays if params]
    if settings.name in ("lamb", "lars") and others:
        groups[-1]["adapt"] = False
    passed_on = {"lr", *OPTIMIZER_OWNERS}
    own = settings.model_dump(include=passed_on, exclude_none=True)
    form: dict[str, str] = {"master": settings.master, "moments": settings.moments}
    if compaction == "samo":
        form["master"] = "wide"
    made: torch.optim.Optimizer
    if set(form.values()) == {"fp32"} and settings.name in _PLAIN:
        made = _PLAIN[settings.name](groups, **own)
    else:
        made = _CLASSES[settings.name](groups, **own, **form)
    if settings.tables is None:
        return made
    kinds = _BY_QUANTIZED_ROWS if _has_quantized_tables(model) else _BY_ROWS
    by_rows = kinds[settings.tables.name](tables, lr=settings.tables.lr)
    return SideBySide([made, by_rows])


def table_sizes(settings: OptimizerSettings, model: nn.Module) -> tuple[int, int, int]:
    """Entries of Parameters that are trained by rows, their bytes, numbers of optimizer state."""
    if settings.tables is None:
        return 0, 0, 0
    tables, name = _tables(model), settings.tables.name
    weights, size = (sum(n) for n in zip(*((t.numel(), t.nbytes) for t in tables), strict=True))
    if name == "adagrad" and _has_quantized_tables(model):
        return weights, size, sum(len(table) for table in tables)
    return weights, size, _MOMENTS[name] * weights


def _tables(model: nn.Module) -> list[nn.Parameter]:
    """Weights of tables, whose gradients from now on hold the rows that were looked up."""
    found: Any = getattr(model, "tables", None)
    if not isinstance(found, nn.ModuleList) or not len(found):
        raise InputError(
            f"optimizer.tables: {type(model).__name__} has no tables. Leave the section out."
        )
    tables: list[Any] = list(found)
    for table in tables:
        table.sparse = True
    return [table.weight for table in tables]
