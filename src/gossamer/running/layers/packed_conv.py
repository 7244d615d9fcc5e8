# SPDX-License-Identifier: Apache-2.0
"""A convolution for inference: packed kept weights on the sparse kernel."""

from dataclasses import replace

import torch
from torch import nn

from gossamer.formats import SparseMatrix
from gossamer.nn import Conv2d
from gossamer.nn.layers import SparseLayer
from gossamer.nn.layers.conv_attributes import ConvAttributes
from gossamer.nn.layers.weight_stand_in import HasNoWeight
from gossamer.ops.conv import ConvSettings, PackedConv
from gossamer.patterns import Pattern
from gossamer.running.layers.packed import Choice, packed_stand_in


class PackedConv2d(ConvAttributes, HasNoWeight, SparseLayer):
    """`nn.Conv2d` with a weight packed for a kernel. Inference only.

    The packed weight is a copy: later edits of the layer it came from do not reach it. Images of
    another size than the measured one run on the sparse kernel too; the first call with a new size
    packs the weight once more. `dtype` is that of the layer: 16-bit ones are computed in float32.
    """

    kind = "conv"
    form = "packed"
    bias: nn.Parameter | None

    def __init__(
        self,
        packed: PackedConv,
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
        dtype: torch.dtype = torch.float32,
        where: str = "a compiled Conv2d",
    ) -> None:
        super().__init__()
        self.packed = packed
        self.settings: ConvSettings = packed.settings
        self._dtype = dtype
        self._stand_in = packed_stand_in(where, self.settings.weight_shape, dtype)
        self.pattern = pattern
        self.choices = choices
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)

    @property
    def weight(self) -> torch.Tensor:
        """Answers dtype, device and shape; the numbers are packed."""
        return self._stand_in

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[out, in / groups, kernel height, kernel width]."""
        return self.settings.weight_shape

    def matrix(self) -> SparseMatrix:
        """The kept values that were packed, in the dtype of the layer."""
        held = self.packed.matrix
        positions = replace(held.positions, pattern=self.pattern)
        return SparseMatrix(positions, held.values.to(self._dtype))

    def forward(
        self, x: torch.Tensor, added: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W]; fused_convs.py passes the rest."""
        bias = self._parameters["bias"]
        if self._dtype is torch.float32:
            return self.packed(x, bias, activation, added)
        floats = [None if tensor is None else tensor.float() for tensor in (bias, added)]
        return self.packed(x.float(), floats[0], activation, floats[1]).to(x.dtype)

    def to_compact(self) -> Conv2d:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        held = self.matrix()
        values, bits = held.values.clone(), held.positions.bits().clone()
        return Conv2d(values, bits, self.settings, self.bias, pattern=self.pattern)

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Conv2d prints its own."""
        s = self.settings
        return (
            f"{s.in_channels}, {s.out_channels}, kernel_size={s.kernel_size}, stride={s.stride},"
            f" padding={s.padding}, groups={s.groups}, bias={self.bias is not None},"
            f" density={self.density:.4g}, kernel={self.packed.kernel}"
        )
