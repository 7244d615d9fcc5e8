# SPDX-License-Identifier: Apache-2.0
"""A shortcut without weights past a block that halves the image and adds channels.

It is that of CIFAR's residual networks (arXiv 1512.03385, option A). `padding_of` recognises it in
any module that computes it, so that a slim network can have one with fewer channels.
"""

import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from gossamer.errors import InputError

__all__ = ["PaddedShortcut", "Padding", "padding_of"]

_SPATIAL = 4  # numbers of F.pad that are height and width


class Padding(NamedTuple):
    """Channels of zeros before and after those of the input, of which every `stride`th pixel is."""

    before: int
    after: int
    stride: int


class PaddedShortcut(nn.Module):
    """Every `stride`th pixel of x [N, C, H, W], between channels of zeros.

    Args:
        before: channels of zeros in front.
        after: channels of zeros behind.
        stride: between pixels that stay, in both directions.
    """

    def __init__(self, before: int, after: int, stride: int = 2) -> None:
        super().__init__()
        if before < 0 or after < 0 or stride < 1:
            raise InputError(
                "PaddedShortcut: before and after must be at least 0 and stride at least 1, got"
                f" {before}, {after} and {stride}."
            )
        self.before, self.after, self.stride = before, after, stride

    @property
    def padding(self) -> Padding:
        """The settings."""
        return Padding(self.before, self.after, self.stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, before + C + after, H / stride, W / stride], rounded up."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        """The settings."""
        return f"before={self.before}, after={self.after}, stride={self.stride}"


def padding_of(module: nn.Module) -> Padding | None:
    """The settings of a shortcut, whatever its class; None for every other module."""
    if isinstance(module, PaddedShortcut):
        return module.padding
    held = (module._parameters, module._buffers, module._modules)
    if any(held) or type(module).__module__.startswith("torch."):
        return None
    try:
        steps = [n for n in fx.Tracer().trace(module).nodes if n.op != "placeholder"]
    except Exception:
        # Whatever a user's forward raises on symbols: it is no shortcut that can be read.
        return None
    stride = 1
    if len(steps) == 3 and steps[0].target is operator.getitem:
        found = _stride(steps.pop(0).args[1])
        if found is None:
            return None
        stride = found
    if len(steps) != 2 or steps[0].target is not F.pad:
        return None
    amounts = _amounts(steps[0])
    return None if amounts is None else Padding(*amounts, stride)


def _stride(index: Any) -> int | None:
    """Of a subscript that takes all images, all channels, and the same pixels both ways."""
    every = slice(None)
    if not isinstance(index, tuple) or len(index) != _SPATIAL or index[:2] != (every, every):
        return None
    rows, columns = index[2:]
    plain = isinstance(rows, slice) and rows.start is None and rows.stop is None
    step = rows.step if plain and rows == columns else None
    return step if type(step) is int and step > 0 else None


def _amounts(node: fx.Node) -> tuple[int, int] | None:
    """Channels that a call of F.pad puts before and after; None if it does anything else."""
    given = dict(zip(("input", "pad", "mode", "value"), node.args, strict=False)) | node.kwargs
    amounts: Any = given.get("pad")
    if given.get("mode", "constant") != "constant" or given.get("value") not in (None, 0, 0.0):
        return None
    if not isinstance(amounts, tuple | list) or len(amounts) != _SPATIAL + 2:
        return None
    whole = all(type(amount) is int and amount >= 0 for amount in amounts)
    if not whole or any(amounts[:_SPATIAL]):
        return None
    return amounts[_SPATIAL], amounts[_SPATIAL + 1]
