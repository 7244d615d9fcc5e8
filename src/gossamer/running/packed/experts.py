# SPDX-License-Identifier: Apache-2.0
"""The linear layer of several experts for inference: one packed weight per expert.

Legend: S tokens sorted by expert, O outputs and K inputs of one expert.
"""

from collections.abc import Sequence

import torch

from gossamer.errors import InputError
from gossamer.formats import SparseMatrix
from gossamer.ops.experts import own_rows
from gossamer.running.choice import Choice
from gossamer.running.packed.layers import PackedForm, PackedLinear


class PackedExperts(PackedForm):
    """`GroupedLinear` with the weight of each expert packed for kernels. Inference only.

    Args:
        parts: one per expert; no modules of the model, so that nobody takes them for layers.
        bias: of all experts, or None.
        choices: what was measured for one expert, fewest tokens of it first.
        dtype: of the layer.
        where: begins the message of what needs the weight itself.
    """

    kind = "experts"

    def __init__(
        self,
        parts: tuple[PackedLinear, ...],
        bias: torch.Tensor | None,
        choices: tuple[Choice, ...],
        dtype: torch.dtype,
        where: str,
    ) -> None:
        first = parts[0]
        shape = (len(parts) * first.out_features, first.in_features)
        super().__init__(shape, bias, first.pattern, choices, dtype, where)
        self.parts, self.num_experts = parts, len(parts)
        self.in_features, self.out_features = first.in_features, first.out_features

    @property
    def nnz(self) -> int:
        """Kept weights of all experts."""
        return sum(part.nnz for part in self.parts)

    @property
    def format(self) -> str:
        """What a file would hold the weight in."""
        return self.parts[0].format

    def packed_matrix(self) -> SparseMatrix:
        """The kept values of all experts as float32."""
        return SparseMatrix.stack([part.packed_matrix() for part in self.parts])

    def forward(self, x_SK: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The tokens [S, K] of all experts, `counts[e]` of each, behind one another: [S, O]."""
        if len(counts) != self.num_experts or sum(counts) != len(x_SK):
            raise InputError(
                f"packed experts: {len(x_SK)} tokens and counts {list(counts)} do not belong"
                f" together for {self.num_experts} experts."
            )
        results = [
            self.parts[expert](x_SK[tokens])
            for expert, (tokens, _) in own_rows(counts, self.out_features)
        ]
        if not results:
            return x_SK.new_empty(0, self.out_features)
        return results[0] if len(results) == 1 else torch.cat(results)

    def extra_repr(self) -> str:
        """Sizes and the kernel."""
        kernels = sorted({choice.kernel for choice in self.choices})
        return (
            f"num_experts={self.num_experts}, in_features={self.in_features},"
            f" out_features={self.out_features}, bias={self.bias is not None},"
            f" kernel={'|'.join(kernels)}"
        )
