# SPDX-License-Identifier: Apache-2.0
"""A convolution for inference: packed kept weights on the sparse kernel."""

import torch
from torch import nn

from gossamer.nn import Conv2d
from gossamer.ops.conv import PackedConv
from gossamer.ops.conv_settings import ConvSettings
from gossamer.patterns import Pattern
from gossamer.run.packed import Choice


class PackedConv2d(nn.Module):
    """`nn.Conv2d` with a weight packed for a kernel. Inference only.

    The packed weight is a copy: later edits of the layer it came from do not reach it. Images of
    another size than the measured one run on the sparse kernel too; the first call with a new size
    packs the weight once more.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        packed: PackedConv,
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
    ) -> None:
        super().__init__()
        self.packed = packed
        self.pattern: Pattern = pattern
        self.choices = choices
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)

    @property
    def settings(self) -> ConvSettings:
        """Sizes, stride, padding, dilation and groups."""
        return self.packed.settings

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the dense weight."""
        return self.settings.weight_shape

    @property
    def density(self) -> float:
        """Kept fraction."""
        return self.packed.values.numel() / max(torch.Size(self.weight_shape).numel(), 1)

    def forward(
        self, x: torch.Tensor, added: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W]; fused_convs.py passes the rest."""
        return self.packed(x, self._parameters["bias"], activation, added)

    def to_compact(self) -> Conv2d:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        packed = self.packed
        return Conv2d(
            packed.values.clone(),
            packed.mask_bits.clone(),
            self.settings,
            self.bias,
            pattern=self.pattern,
        )

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Conv2d prints its own."""
        s = self.settings
        return (
            f"{s.in_channels}, {s.out_channels}, kernel_size={s.kernel_size}, stride={s.stride},"
            f" padding={s.padding}, groups={s.groups}, bias={self.bias is not None},"
            f" density={self.density:.4g}, kernel={self.packed.kernel}"
        )
