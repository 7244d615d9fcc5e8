# SPDX-License-Identifier: Apache-2.0
"""What a Conv2d is besides its weight: sizes, stride, padding, dilation, groups."""

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.errors import InputError
from gossamer.ops.kernels import active_kernels

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvSettings:
    """The arguments of nn.Conv2d, with pairs for (height, width)."""

    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair = (1, 1)
    padding: Pair | str = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    padding_mode: str = "zeros"

    def __post_init__(self) -> None:
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise InputError(
                f"Conv2d: groups={self.groups} must divide in_channels={self.in_channels} and"
                f" out_channels={self.out_channels}."
            )

    @classmethod
    def of(cls, conv: Any) -> "ConvSettings":
        """Those of an nn.Conv2d or of a layer with its attributes."""
        given: dict[str, Any] = {field.name: getattr(conv, field.name) for field in fields(cls)}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**given | lists)

    def numbers(self) -> list[int]:
        """All of it for an op, which takes numbers only; padding must be even zeros."""
        pairs = (self.kernel_size, self.stride, self.even_padding() or (0, 0), self.dilation)
        sizes = (n for pair in pairs for n in pair)
        return [self.in_channels, self.out_channels, *sizes, self.groups]

    @classmethod
    def of_numbers(cls, numbers: list[int]) -> "ConvSettings":
        """The way back from `numbers`."""
        channels, rows, kh, kw, sh, sw, ph, pw, dh, dw, groups = numbers
        return cls(channels, rows, (kh, kw), (sh, sw), (ph, pw), (dh, dw), groups)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """[out, in / groups, kernel height, kernel width]."""
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The weight seen as [out, everything else]."""
        rows, *rest = self.weight_shape
        return rows, torch.Size(rest).numel()

    def sides(self) -> tuple[Pair, Pair]:
        """Padding (before, after) of height and of width, also for "same" and "valid"."""
        if isinstance(self.padding, tuple):
            return (self.padding[0],) * 2, (self.padding[1],) * 2
        if self.padding == "valid":
            return (0, 0), (0, 0)
        spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        height, width = ((span // 2, span - span // 2) for span in spans)
        return height, width

    def even_padding(self) -> Pair | None:
        """Zeros on both sides of height and width; None if the sides differ or are no zeros."""
        height, width = self.sides()
        even = height[0] == height[1] and width[0] == width[1]
        is_zero = self.padding_mode == "zeros" or (*height, *width) == (0, 0, 0, 0)
        return (height[0], width[0]) if even and is_zero else None

    def out_size(self, image: Pair) -> Pair:
        """Height and width of the output for an input of `image`."""
        height, width = (
            (size + sum(side) - d * (k - 1) - 1) // s + 1
            for size, side, k, s, d in zip(
                image, self.sides(), self.kernel_size, self.stride, self.dilation, strict=True
            )
        )
        return height, width

    def geometry(self, image: Pair) -> dict[str, Any]:
        """As native code takes it, for images of one size; padding must be even zeros."""
        return {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.even_padding() or (0, 0),
            "dilation": self.dilation,
            "groups": self.groups,
            "image": image,
            "kernels": active_kernels(),
        }

    def apply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The dense convolution, as nn.Conv2d does it."""
        padding: Pair | str = self.padding
        if self.padding_mode != "zeros":
            height, width = self.sides()
            x = F.pad(x, (*width, *height), mode=self.padding_mode)
            padding = (0, 0)
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def build(self, has_bias: bool, dtype: torch.dtype) -> nn.Conv2d:
        """An nn.Conv2d on the meta device."""
        return nn.Conv2d(**vars(self), bias=has_bias, device="meta", dtype=dtype)
