# SPDX-License-Identifier: Apache-2.0
"""The compact Linear.

Legend: R rows (outputs), K columns (inputs), n kept values.
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.compact import CompactWeight, Mode
from gossamer.ops.calls import is_traced
from gossamer.ops.training import compact_linear, resident_linear, why_unusable
from gossamer.ops.training.dense_weight import dense_linear, dense_of
from gossamer.patterns import Pattern


class Linear(CompactWeight):
    """`y = x W^T + b` whose only trainable weights are the kept ones.

    Args:
        values: the n kept values of W [R, K], row-major.
        mask_bits: packed mask uint8 [R, ceil(K/8)].
        in_features: K.
        bias: [R] or None.
        pattern: the rule the mask obeys.
        mode: "jit" rebuilds the dense weight inside each forward and backward and frees it;
            "resident" keeps a dense copy beside the values (4 bytes per weight more in fp32) and
            is faster for few tokens; `give_up_values` keeps that copy only. It is refreshed at
            every forward in training; in eval mode when the values were changed by an optimizer,
            a load or a switch of mode. Edits through `.data` in eval mode need `refresh()`.
            "kernel" multiplies on sparse kernels, forward and backward, and keeps nothing beside
            values and mask; inputs of another dtype than float32 or on another device than the CPU
            run as "jit", counted as dense fallbacks. `gossamer.training.modes.choose_modes`
            measures which is faster. Under torch.compile, torch.export and tracers "resident" runs
            as "jit". 16-bit values take 32-bit inputs in every mode. "samo" is SAMO as published:
            the dense weight and an int32 index are all there is, as after `give_up_values`;
            `gossamer.training.samo` makes it of a model and its optimizer.
    """

    kind = "linear"
    MODES = ("jit", "resident", "kernel", "samo")
    TRAINS_ON_DENSE = ("resident", "samo")

    def __init__(
        self,
        values: torch.Tensor,
        mask_bits: torch.Tensor,
        in_features: int,
        bias: torch.Tensor | None = None,
        *,
        pattern: Pattern | None = None,
        mode: Mode = "jit",
    ) -> None:
        super().__init__(values, mask_bits, (mask_bits.shape[0], in_features), bias, pattern, mode)
        self.out_features, self.in_features = self.matrix_shape

    @staticmethod
    def settings_of(layer: Any) -> int:
        """`in_features` of a Linear in any form."""
        return int(layer.in_features)

    def to_dense(self) -> nn.Linear:
        """An ordinary, independent nn.Linear with exact zeros."""
        return self._copied_to(
            nn.Linear, in_features=self.in_features, out_features=self.out_features
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T + b` for x [..., K]."""
        if self._home is not None and self._home.has_index and not is_traced(x):
            weight = dense_of(self.values, self._home.dense, self._home.positions)
            return dense_linear(x, weight, self.bias)
        if self.mode in self.TRAINS_ON_DENSE and not is_traced(x):
            return resident_linear(x, self.values, self._fresh_dense(), self.mask_bits, self.bias)
        if self._home is not None:
            raise InputError(
                "compact Linear: its values were given up to the dense weight, and mode"
                f" {self.mode!r} or a compiler wants them. Call take_back_values() first."
            )
        return compact_linear(
            x,
            self.values,
            self.mask_bits,
            self.bias,
            self.in_features,
            sparse=self.mode == "kernel",
        )

    def product(self, x: torch.Tensor, values: torch.Tensor, *, sparse: bool) -> torch.Tensor:
        """`x W^T` with W made of these values."""
        return compact_linear(x, values, self.mask_bits, None, self.in_features, sparse=sparse)

    def input_shape(self, tokens: int, seen: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """[tokens, in]."""
        return tokens, self.in_features

    def why_no_kernel(self) -> str | None:
        """None, or the dtype or device that kernels do not take."""
        values: torch.Tensor = self.values
        if values.dtype is torch.bfloat16:
            # Split masters: 16-bit values are raised to the type of the input, that of the bias.
            values = values.float()
        return why_unusable(values, self.bias)

    def extra_repr(self) -> str:
        """Sizes, density, pattern and mode."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" {self._settings_repr()}"
        )
