# SPDX-License-Identifier: Apache-2.0
"""A convolution for inference: packed kept weights on the sparse kernel."""

import torch

from gossamer.formats import SparseMatrix
from gossamer.nn.layers.parts import ConvAttributes
from gossamer.ops.conv import ConvSettings, PackedConv
from gossamer.patterns import Pattern
from gossamer.running.choice import Choice
from gossamer.running.packed.form import PackedForm


class PackedConv2d(ConvAttributes, PackedForm):
    """`nn.Conv2d` with a weight packed for a kernel. Inference only.

    Images of another size than the measured one run on the sparse kernel too; the first call with a
    new size packs the weight once more.
    """

    kind = "conv"

    def __init__(
        self,
        packed: PackedConv,
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
        dtype: torch.dtype = torch.float32,
        where: str = "a compiled Conv2d",
    ) -> None:
        settings: ConvSettings = packed.settings
        super().__init__(settings.weight_shape, bias, pattern, choices, dtype, where)
        self.packed, self.settings = packed, settings

    def packed_matrix(self) -> SparseMatrix:
        """The kept values as float32, as they were packed."""
        return self.packed.matrix

    def forward(
        self, x: torch.Tensor, added: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W]; fused_convs.py passes the rest."""
        bias = self._parameters["bias"]
        if self._dtype is torch.float32:
            return self.packed(x, bias, activation, added)
        floats = [None if tensor is None else tensor.float() for tensor in (bias, added)]
        return self.packed(x.float(), floats[0], activation, floats[1]).to(x.dtype)

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Conv2d prints its own."""
        s = self.settings
        return (
            f"{s.in_channels}, {s.out_channels}, kernel_size={s.kernel_size}, stride={s.stride},"
            f" padding={s.padding}, groups={s.groups}, bias={self.bias is not None},"
            f" density={self.density:.4g}, kernel={self.packed.kernel}"
        )
