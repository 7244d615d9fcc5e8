# SPDX-License-Identifier: Apache-2.0
"""Aggregated sparsity: neurons that were active for some tokens are all that the next ones read.

Legend: T tokens, D features.
"""

import torch

from gossamer.ops.engines import PackedNeurons


class NeuronMemory:
    """The neurons of one block that were active in a window of tokens.

    Args:
        num_neurons: of the block.
        window: tokens whose active neurons are put together.
        reuse: tokens after them that read no others.
    """

    def __init__(self, num_neurons: int, window: int, reuse: int) -> None:
        self._seen = torch.zeros(num_neurons, dtype=torch.uint8)
        self._window, self._reuse = window, reuse
        self._token = 0
        self._known: torch.Tensor | None = None

    def run(self, packed: PackedNeurons, x: torch.Tensor) -> torch.Tensor:
        """The block's output for x [..., D], token by token."""
        rows_TD = x.reshape(-1, x.shape[-1])
        return torch.cat([self._one(packed, row_D) for row_D in torch.split(rows_TD, 1)]).view(
            x.shape
        )

    def _one(self, packed: PackedNeurons, x_1D: torch.Tensor) -> torch.Tensor:
        at = self._token % (self._window + self._reuse)
        self._token += 1
        if at == 0:
            self._seen.zero_()
            self._known = None
        if at < self._window:
            return packed(x_1D, seen_N=self._seen)[0]
        if self._known is None:
            self._known = self._seen.nonzero().flatten()
        return packed(x_1D, self._known)[0]
