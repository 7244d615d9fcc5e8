# SPDX-License-Identifier: Apache-2.0
"""Layers of transformers that are of no kind, made into layers that are.

Conv1D of GPT-2 and Falcon's own Linear become Linears (`matrix_layers`), the 3-D Parameters of
experts become layers of the kind "experts" (`gossamer.nn.moe`).
"""

from torch import nn

from gossamer.nn.moe import adopt_experts, stored_experts
from gossamer.nn.surgery.matrix_layers import conv1d_to_linear, has_other_linears

__all__ = ["has_other_layers", "to_known_layers"]


def to_known_layers(model: nn.Module) -> nn.Module:
    """Replace what can be a layer of a known kind inside `model`, and give `model` back."""
    return adopt_experts(conv1d_to_linear(model))


def has_other_layers(model: nn.Module) -> bool:
    """Whether `to_known_layers` would replace anything inside `model`."""
    return has_other_linears(model) or any(stored_experts(model))
