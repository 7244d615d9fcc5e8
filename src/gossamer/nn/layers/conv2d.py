# SPDX-License-Identifier: Apache-2.0
"""The compact Conv2d: kept values over the weight seen as [out, in / groups * kernel].

Legend: R rows (output channels), K columns (in / groups * kernel height * kernel width).
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.compact import CompactWeight, Mode
from gossamer.nn.layers.stand_in import ConvAttributes
from gossamer.ops.calls import is_traced
from gossamer.ops.conv import ConvSettings, why_not
from gossamer.ops.fallback import report_fallback
from gossamer.ops.training import (
    compact_conv,
    expand_values,
    kernel_settings,
    why_dense,
    why_unusable,
)
from gossamer.ops.training.dense_weight import dense_of
from gossamer.patterns import Pattern


class Conv2d(ConvAttributes, CompactWeight):
    """`nn.Conv2d` whose only trainable weights are the kept ones.

    Args:
        values: the n kept values of the weight seen as [R, K], row-major.
        mask_bits: packed mask uint8 [R, ceil(K/8)].
        settings: channels, kernel size, stride, padding, dilation, groups, padding mode.
        bias: [R] or None.
        pattern: the rule the mask obeys.
        mode: "jit" rebuilds the dense weight in each forward; it lives until the backward, which
            needs it. "resident" keeps a dense copy beside the values for calls without gradients,
            with the rules of `gossamer.nn.Linear`; calls with gradients run as "jit". "kernel"
            multiplies on sparse kernels, forward and backward, and keeps nothing beside values and
            mask; what they cannot take (other dtypes than float32, other devices than the CPU,
            autocast) runs as "jit" and is counted as a dense fallback.
            `gossamer.training.modes.choose_modes` measures which is faster. "samo" holds the dense
            weight and an int32 index, with and without gradients, as a Linear of that mode does.
    """

    kind = "conv"
    MODES = ("jit", "resident", "kernel", "samo")
    TRAINS_ON_DENSE = ("samo",)

    def __init__(
        self,
        values: torch.Tensor,
        mask_bits: torch.Tensor,
        settings: ConvSettings,
        bias: torch.Tensor | None = None,
        *,
        pattern: Pattern | None = None,
        mode: Mode = "jit",
    ) -> None:
        rows, columns = settings.matrix_shape
        if mask_bits.ndim != 2 or mask_bits.shape[0] != rows:
            raise InputError(
                f"compact Conv2d: mask_bits must be [{rows}, {(columns + 7) // 8}] for"
                f" out_channels={rows}, got {list(mask_bits.shape)}."
            )
        super().__init__(values, mask_bits, settings.weight_shape, bias, pattern, mode)
        self.settings = settings

    @staticmethod
    def settings_of(layer: Any) -> ConvSettings:
        """Those of a Conv2d in any form."""
        return ConvSettings.of(layer)

    def to_dense(self) -> nn.Conv2d:
        """An ordinary, independent nn.Conv2d with exact zeros."""
        return self._copied_to(nn.Conv2d, **vars(self.settings))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W]."""
        if self.mode == "kernel":
            reason = why_dense(x, self.values, self.bias, self.settings)
            if reason is None:
                return compact_conv(x, self.values, self.mask_bits, self.bias, self.settings)
            report_fallback("compact Conv2d, mode 'kernel'", reason)
        if self._home is not None and not is_traced(x):
            weight_RK = dense_of(self.values, self._home.dense, self._home.positions)
        elif self._home is not None:
            raise InputError(
                "compact Conv2d: its values were given up to the dense weight, and a compiler wants"
                " them. Call take_back_values() first."
            )
        elif self.mode == "resident" and not is_traced(x) and not torch.is_grad_enabled():
            weight_RK = self._fresh_dense()
        else:
            weight_RK = expand_values(self.values, self.mask_bits, self.matrix_shape[1])
        return self.settings.apply(x, weight_RK.view(self.weight_shape), self.bias)

    def product(self, x: torch.Tensor, values: torch.Tensor, *, sparse: bool) -> torch.Tensor:
        """The convolution by a weight made of these values."""
        if sparse:
            return compact_conv(x, values, self.mask_bits, None, self.settings)
        weight_RK = expand_values(values, self.mask_bits, self.matrix_shape[1])
        return self.settings.apply(x, weight_RK.view(self.weight_shape), None)

    def why_no_kernel(self) -> str | None:
        """None, or the setting, dtype or device that kernels do not take."""
        return why_unusable(self.values, self.bias) or why_not(kernel_settings(self.settings))

    def num_products(self, shape: tuple[int, ...]) -> int:
        """Pixels of the output in all images."""
        size = self.settings.out_size((shape[-2], shape[-1]))
        return torch.Size((*shape[:-3], *size)).numel()

    def extra_repr(self) -> str:
        """Sizes, density, pattern and mode."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size},"
            f" stride={self.stride}, padding={self.padding}"
        )
        for name, value in {"dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}.items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)}"
        return f"{text}, {self._settings_repr()}"
