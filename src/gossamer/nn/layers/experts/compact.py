# SPDX-License-Identifier: Apache-2.0
"""The compact linear layer of several experts, whose parts keep unequal numbers of weights.

Legend: S tokens sorted by expert, E experts, O outputs and K inputs of one expert, R = E O rows.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.formats.bits import count_bits
from gossamer.nn.layers.compact import CompactWeight, Mode
from gossamer.nn.layers.experts.grouped import ExpertSizes, GroupedLinear, check_tiles
from gossamer.ops.calls import is_traced
from gossamer.ops.experts import grouped_linear, own_rows
from gossamer.ops.training import compact_linear, why_unusable
from gossamer.patterns import Pattern, Unstructured


class Experts(CompactWeight):
    """Linear layers of several experts whose only trainable weights are the kept ones.

    Args:
        values: the kept values of the weights of all experts, row-major, behind one another.
        mask_bits: packed mask uint8 [R, ceil(K/8)].
        sizes: how many experts there are, and K.
        bias: [R] or None.
        pattern: the rule the mask obeys; its tiles lie inside experts.
        mode: "jit" rebuilds the dense weight of an expert inside each product and frees it;
            "kernel" multiplies on sparse kernels, forward and backward, in float32 on the CPU. Only
            experts that have tokens are touched. "resident" keeps a dense copy for calls without
            gradients, with the rules of `gossamer.nn.Linear`; others run as "jit".
    """

    kind = "experts"

    def __init__(
        self,
        values: torch.Tensor,
        mask_bits: torch.Tensor,
        sizes: ExpertSizes,
        bias: torch.Tensor | None = None,
        *,
        pattern: Pattern | None = None,
        mode: Mode = "jit",
    ) -> None:
        rows, rest = divmod(mask_bits.shape[0], sizes.num_experts)
        if rest:
            raise InputError(
                f"compact Experts: {mask_bits.shape[0]} rows are not those of {sizes.num_experts}"
                " experts of one size."
            )
        check_tiles(pattern or Unstructured(), rows, sizes.num_experts, "compact Experts")
        shape = (mask_bits.shape[0], sizes.in_features)
        super().__init__(values, mask_bits, shape, bias, pattern, mode)
        self.num_experts, self.in_features = sizes.num_experts, sizes.in_features
        self.out_features = rows
        self._counted: tuple[int, int, list[int]] | None = None

    @staticmethod
    def settings_of(layer: Any) -> ExpertSizes:
        """The sizes of a layer of experts in any form."""
        return ExpertSizes.of(layer)

    def kept_of_experts(self) -> list[int]:
        """How many weights each expert keeps."""
        bits = self.mask_bits
        version = 0 if bits.is_inference() else bits._version
        if self._counted is None or self._counted[:2] != (bits.data_ptr(), version):
            kept = [count_bits(part) for part in bits.chunk(self.num_experts)]
            self._counted = bits.data_ptr(), version, kept
        return self._counted[2]

    def to_dense(self) -> GroupedLinear:
        """An ordinary, independent GroupedLinear with exact zeros."""
        return self._copied_to(
            GroupedLinear,
            num_experts=self.num_experts,
            in_features=self.in_features,
            out_features=self.out_features,
        )

    def forward(self, x_SK: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The tokens [S, K] of all experts, `counts[e]` of each, behind one another: [S, O]."""
        if len(counts) != self.num_experts or sum(counts) != len(x_SK):
            raise InputError(
                f"compact Experts: {len(x_SK)} tokens and counts {list(counts)} do not belong"
                f" together for {self.num_experts} experts."
            )
        if self.mode == "resident" and not is_traced(x_SK) and not torch.is_grad_enabled():
            return grouped_linear(x_SK, self._fresh_dense(), self.bias, counts)
        return self._multiply(x_SK, self.values, self.bias, counts, self.mode == "kernel")

    def _multiply(
        self,
        x_SK: torch.Tensor,
        values: torch.Tensor,
        bias_R: torch.Tensor | None,
        counts: Sequence[int],
        sparse: bool,
    ) -> torch.Tensor:
        # split, not narrow: its backward writes the gradient of all experts once.
        parts = torch.split(values, self.kept_of_experts())
        # Without a token the first expert gives an empty result, as a part of the graph.
        nobody = [(0, (slice(0, 0), slice(0, self.out_features)))]
        results = [
            compact_linear(
                x_SK[tokens],
                parts[expert],
                self.mask_bits[own],
                None if bias_R is None else bias_R[own],
                self.in_features,
                sparse=sparse,
            )
            for expert, (tokens, own) in [*own_rows(counts, self.out_features)] or nobody
        ]
        return results[0] if len(results) == 1 else torch.cat(results)

    def product(self, x: torch.Tensor, values: torch.Tensor, *, sparse: bool) -> torch.Tensor:
        """The product with weights made of these values; tokens are dealt out evenly."""
        x_SK = x.reshape(-1, self.in_features)
        share, rest = divmod(len(x_SK), self.num_experts)
        counts = [share + (expert < rest) for expert in range(self.num_experts)]
        return self._multiply(x_SK, values, None, counts, sparse)

    def input_shape(self, tokens: int, seen: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """[tokens, in]."""
        return tokens, self.in_features

    def why_no_kernel(self) -> str | None:
        """None, or the dtype or device that kernels do not take."""
        return why_unusable(self.values, self.bias)

    def extra_repr(self) -> str:
        """Sizes, density, pattern and mode."""
        return (
            f"num_experts={self.num_experts}, in_features={self.in_features},"
            f" out_features={self.out_features}, {self._settings_repr()}"
        )
