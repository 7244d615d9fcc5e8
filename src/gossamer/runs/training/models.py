# SPDX-License-Identifier: Apache-2.0
"""The models a `train` stage can name, built for the sizes of the data."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from torch import nn

from gossamer.errors import InputError
from gossamer.recipes.stages import Architecture
from gossamer.zoo import GPT, MLP, TinyEncoder

DEFAULT_CONTEXT = 128
_DEFAULT_HEADS = 4


def build_model(architecture: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    """The model, with fresh weights from the global generator.

    Args:
        architecture: from the recipe.
        sizes: of inputs and outputs, from the task.
    """
    return _BUILDERS[architecture.name](architecture, sizes)


def context_of(architecture: Architecture) -> int:
    """Tokens of a window."""
    return architecture.context or DEFAULT_CONTEXT


def _mlp(a: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    hidden = [a.width] * a.layers
    return MLP((sizes["inputs"], *hidden, sizes["classes"]), a.activation or "relu")


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


def _gpt(a: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    return GPT(
        sizes["vocabulary"],
        width=a.width,
        num_heads=a.heads or _DEFAULT_HEADS,
        num_layers=a.layers,
        context=context_of(a),
        tied=bool(a.tied),
    )


def _encoder(a: Architecture, sizes: Mapping[str, int]) -> nn.Module:
    return TinyEncoder(
        sizes["vocabulary"],
        sizes["classes"],
        width=a.width,
        num_heads=a.heads or _DEFAULT_HEADS,
        num_layers=a.layers,
        ffn_width=4 * a.width,
        max_tokens=context_of(a),
    )


_BUILDERS: dict[str, Callable[[Architecture, Mapping[str, int]], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "gpt": _gpt,
    "encoder": _encoder,
}
