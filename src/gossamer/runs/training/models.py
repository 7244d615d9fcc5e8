# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage names, built: the model for the sizes of the data, and its optimizer."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.recipes.stages import Architecture, OptimizerSettings
from gossamer.training.optim import LAMB, LARS, SGD, AdamW
from gossamer.zoo import GPT, MLP, TinyEncoder

DEFAULT_CONTEXT = 128
_DEFAULT_HEADS = 4
_CLASSES: dict[str, Any] = {"adamw": AdamW, "sgd": SGD, "lamb": LAMB, "lars": LARS}
_PLAIN: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def build_model(architecture: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    """The model, with fresh weights from the global generator.

    Args:
        architecture: from the recipe.
        sizes: of inputs and outputs, from the task.
    """
    a = architecture
    if a.name == "mlp":
        hidden = [a.width] * a.layers
        return MLP((sizes["inputs"], *hidden, sizes["classes"]), a.activation or "relu")
    if a.name == "cnn":
        return _cnn(a, sizes)
    blocks: Any = {"width": a.width, "num_heads": a.heads or _DEFAULT_HEADS, "num_layers": a.layers}
    if a.name == "gpt":
        return GPT(sizes["vocabulary"], **blocks, context=context_of(a), tied=bool(a.tied))
    return TinyEncoder(
        sizes["vocabulary"],
        sizes["classes"],
        **blocks,
        ffn_width=4 * a.width,
        max_tokens=context_of(a),
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


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters of `model`; biases, norms and scales never decay.

    With plain fp32 state AdamW and SGD are torch's own: they let weights grow back, and our AdamW
    takes the same steps.
    """
    # Kept values of a compact layer are a vector, but they are a weight all the same.
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in model.parameters():
        if param.requires_grad:
            is_weight = param.ndim > 1 or id(param) in values
            (weights if is_weight else others).append(param)
    decays = ((weights, settings.weight_decay), (others, 0.0))
    groups = [{"params": params, "weight_decay": decay} for params, decay in decays if params]
    own = settings.model_dump(include={"lr", "betas", "momentum", "nesterov"}, exclude_none=True)
    form = {"master": settings.master, "moments": settings.moments}
    made: torch.optim.Optimizer
    if set(form.values()) == {"fp32"} and settings.name in _PLAIN:
        made = _PLAIN[settings.name](groups, **own)
    else:
        made = _CLASSES[settings.name](groups, **own, **form)
    return made
