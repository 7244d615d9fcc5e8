# SPDX-License-Identifier: Apache-2.0
"""Which expert sees which token: the way of tokens to their experts and back.

Legend: T tokens, k experts of each, S = T k pairs of both, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Routes:
    """Pairs of token and expert, sorted by expert; pairs of one expert in the order of tokens.

    Attributes:
        tokens: the token of every pair, int64 [S].
        order: where a pair stood before it was sorted, token by token, int64 [S].
        counts: pairs of each expert.
        num_tokens: T, tokens that no expert sees included.
        per_token: k if every token has as many pairs, else 0.
    """

    tokens: torch.Tensor
    order: torch.Tensor
    counts: tuple[int, ...]
    num_tokens: int
    per_token: int

    @classmethod
    def of_choice(cls, index_Tk: torch.Tensor, num_experts: int) -> "Routes":
        """Every token goes to the experts of its row."""
        num_tokens, per_token = index_Tk.shape
        if num_tokens == 1:
            # One token: nothing has to be found out by sorting on a device.
            chosen = index_Tk[0].tolist()
            counts = [0] * num_experts
            for expert in chosen:
                counts[expert] += 1
            places = sorted(range(per_token), key=chosen.__getitem__)
            order = torch.tensor(places, device=index_Tk.device)
            return cls(torch.zeros_like(order), order, tuple(counts), 1, per_token)
        flat = index_Tk.reshape(-1)
        order = flat.argsort(stable=True)
        found = tuple(torch.bincount(flat, minlength=num_experts).tolist())
        tokens = order if per_token == 1 else order // per_token
        return cls(tokens, order, found, num_tokens, per_token)

    def within(self, places: Sequence[int]) -> tuple[torch.Tensor, "Routes"]:
        """Which pairs find a place if each expert has so many, and their way; others are out."""
        counts = torch.tensor(self.counts, device=self.tokens.device)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(self.tokens), device=self.tokens.device)
        place -= starts.repeat_interleave(counts)
        most = torch.tensor(places, device=self.tokens.device).repeat_interleave(counts)
        kept = (place < most).nonzero().flatten()
        left = tuple(map(min, self.counts, places))
        return kept, Routes(self.tokens[kept], self.order[kept], left, self.num_tokens, 0)

    def gather(self, x_TD: torch.Tensor) -> torch.Tensor:
        """The tokens of all pairs, [S, D]."""
        if self.num_tokens == 1:
            return x_TD.expand(len(self.tokens), -1).contiguous()
        return x_TD.index_select(0, self.tokens)

    def weights(self, weights_Tk: torch.Tensor) -> torch.Tensor:
        """The weight of every pair, [S]."""
        return weights_Tk.reshape(-1).index_select(0, self.order)

    def combine(self, y_SD: torch.Tensor, weights_S: torch.Tensor) -> torch.Tensor:
        """The weighted sum of what the experts of each token gave, [T, D]; 0 for one with none.

        Sums run in the order of a token's experts, whatever the number of threads.
        """
        if self.num_tokens == 1 and self.per_token:
            return (weights_S.to(y_SD.dtype) @ y_SD).unsqueeze(0)
        weighted = y_SD * weights_S.unsqueeze(1)
        if self.per_token:
            back = torch.empty_like(self.order)
            back[self.order] = torch.arange(len(back), device=back.device)
            sums = weighted.index_select(0, back)
            if self.per_token > 1:
                sums = sums.view(self.num_tokens, self.per_token, y_SD.shape[1]).sum(1)
            return sums.to(y_SD.dtype)
        result = weighted.new_zeros(self.num_tokens, y_SD.shape[1])
        return result.index_add(0, self.tokens, weighted).to(y_SD.dtype)
