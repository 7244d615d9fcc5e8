# SPDX-License-Identifier: Apache-2.0
"""Sequences of different lengths as one matrix of tokens, without padding.

Sequences stand in the order of their length, so that those of equal length are one contiguous view
[sequences, tokens, width] and attention needs no index, no padding and no mask. Dropping tokens
gathers rows anyway, and the same gather puts the sequences in their new order for nothing.

Legend: N rows (tokens of all sequences), B sequences, T padded tokens, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch


@dataclass(frozen=True)
class EqualLengths:
    """Sequences of equal length: rows `start` to `start + sequences * tokens`."""

    start: int
    sequences: int
    tokens: int

    @property
    def rows(self) -> slice:
        """Where its tokens are."""
        return slice(self.start, self.start + self.sequences * self.tokens)


@dataclass(frozen=True)
class RaggedBatch:
    """Which token every row is.

    Attributes:
        places: [N], its place in the padded batch, sequence x T + position.
        lengths: [B], lengths of the sequences in their present order, ascending.
    """

    places: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, live_BT: torch.Tensor) -> "RaggedBatch":
        """The tokens where `live_BT` is True."""
        place_N = live_BT.flatten().nonzero().flatten()
        lengths_B = live_BT.sum(dim=1)
        kept_N = torch.ones(len(place_N), dtype=torch.bool, device=live_BT.device)
        unsorted = cls(place_N, lengths_B)
        index_N, lengths_B = unsorted._sorted_rows(kept_N)
        return cls(place_N[index_N], lengths_B)

    def groups(self) -> Iterator[EqualLengths]:
        """Sequences of equal length, shortest first; together all rows."""
        start = 0
        for tokens, members in groupby(self.lengths.tolist()):
            sequences = len(list(members))
            yield EqualLengths(start, sequences, tokens)
            start += sequences * tokens

    def keep(self, kept_N: torch.Tensor) -> tuple["RaggedBatch", torch.Tensor]:
        """The batch of the rows where `kept_N` is True, and which row each of its rows was."""
        index_N, lengths_B = self._sorted_rows(kept_N)
        return RaggedBatch(self.places[index_N], lengths_B), index_N

    def _sorted_rows(self, kept_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(self.lengths)
        if count == 1:
            index_N = kept_N.nonzero().flatten()
            return index_N, self.lengths.new_full((1,), len(index_N))
        sequence_N = torch.arange(count, device=kept_N.device).repeat_interleave(self.lengths)
        index_N = kept_N.nonzero().flatten()
        sequence_N = sequence_N[index_N]
        lengths_B = torch.bincount(sequence_N, minlength=count)
        lengths_B, order_B = lengths_B.sort(stable=True)
        rank_B = torch.empty_like(order_B)
        rank_B[order_B] = torch.arange(count, device=kept_N.device)
        return index_N[rank_B[sequence_N].argsort(stable=True)], lengths_B
