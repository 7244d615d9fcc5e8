# SPDX-License-Identifier: Apache-2.0
"""Where a model keeps the feed-forward blocks whose activation can be replaced."""

from dataclasses import dataclass

from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery import inherit_hooks
from gossamer.nn.surgery.matrix_layers import is_matrix_layer

__all__ = ["FeedForward", "feed_forward_blocks", "find_feed_forward"]

_ACTIVATION_MODULES = (
    "torch.nn.modules.activation",
    "transformers.activations",
    "gossamer.nn.relufication.activations",
)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward block.

    Attributes:
        name: dotted name of its block, or of the Sequential it is in.
        parent: module that holds the activation.
        attribute: its name there.
        first: the layer before the activation.
        down_name: dotted name of the layer whose input has the zeros.
        down: that layer.
    """

    name: str
    parent: nn.Module
    attribute: str
    first: nn.Module
    down_name: str
    down: nn.Module

    @property
    def activation(self) -> nn.Module:
        """The activation as it is now."""
        found: nn.Module = getattr(self.parent, self.attribute)
        return found

    def put(self, activation: nn.Module) -> None:
        """Another activation in its place, with its hooks."""
        inherit_hooks(activation, self.activation)
        setattr(self.parent, self.attribute, activation)


def find_feed_forward(model: nn.Module) -> list[FeedForward]:
    """Blocks of known families, and `Linear, activation, Linear` inside any `nn.Sequential`."""
    found = []
    for name, module in model.named_modules():
        parts = block_of(module)
        if parts is not None:
            parent, _, attribute = parts.activation.rpartition(".")
            prefix = f"{name}." if name else ""
            first, down = parts.expansions[0], parts.down
            found.append(
                FeedForward(
                    name, module.get_submodule(parent), attribute,
                    module.get_submodule(first),
                    prefix + down, module.get_submodule(down),
                )
            )  # fmt: skip
        elif isinstance(module, nn.Sequential):
            found += _in_sequence(name, module)
    return found


def feed_forward_blocks(model: nn.Module) -> list[FeedForward]:
    """Those blocks; TargetError if there are none, or if an activation is a function."""
    blocks = find_feed_forward(model)
    if not blocks:
        raise TargetError(
            f"relufication: {type(model).__name__} has no feed-forward block of a known family"
            f" ({', '.join(answers('block'))}) and no Sequential with Linear, activation, Linear."
        )
    for block in blocks:
        if not isinstance(block.activation, nn.Module):
            raise TargetError(f"{block.name}: its activation is a function, not a module.")
    return blocks


def _in_sequence(name: str, sequence: nn.Sequential) -> list[FeedForward]:
    members = list(sequence.named_children())
    found = []
    for (_, first), (attribute, between), (down_name, down) in zip(
        members, members[1:], members[2:], strict=False
    ):
        known = type(between).__module__ in _ACTIVATION_MODULES
        if known and _is_linear(first) and _is_linear(down):
            own = f"{name}." if name else ""
            found.append(
                FeedForward(
                    own + attribute, sequence, attribute, first, own + down_name, down,
                )
            )  # fmt: skip
    return found


def _is_linear(layer: nn.Module) -> bool:
    """Dense, masked, compact or packed: all have the attributes of nn.Linear, Conv1D has not."""
    return hasattr(layer, "in_features") or is_matrix_layer(layer)
