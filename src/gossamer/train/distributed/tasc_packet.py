# SPDX-License-Identifier: Apache-2.0
"""What one bucket sends: one dense buffer, laid out alike on all ranks, that needs no indices.

Blocks that were chosen, then what always travels (biases, norms), then the scores of all blocks of
the bucket, then a checksum of the choice.

Legend: R blocks, N elements of a block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gossamer.train.distributed.tasc_blocks import Cut, Residual

# Sums of checksums over 4096 ranks are exact in fp32.
_CHECKSUM_MODULUS = 4093


@dataclass(frozen=True)
class Entry:
    """A parameter: where its blocks stand among all, and what waits in them on this rank."""

    name: str
    index: int
    cut: Cut
    span: slice
    residual: Residual


@dataclass(frozen=True)
class Part:
    """A parameter in a bucket: its gradient, a piece of the bucket's buffer, and blocks to send."""

    entry: Entry
    flat: torch.Tensor
    rows: torch.Tensor

    @property
    def in_blocks(self) -> torch.Tensor:
        """The gradient in blocks, in place."""
        cut = self.entry.cut
        return self.flat[: cut.blocked].view(-1, cut.block_size)

    @property
    def num_sent(self) -> int:
        """Elements of the blocks to send."""
        return len(self.rows) * self.entry.cut.block_size


class Packet:
    """Takes what is chosen out of residuals; after the all-reduce puts the mean into gradients."""

    def __init__(self, parts: Sequence[Part]) -> None:
        # In the order of the model: a bucket's own order is another before DDP has made its buckets
        # anew, and in a ring the place of a number decides in which order ranks are added.
        self._parts = sorted(parts, key=lambda part: part.entry.index)
        self._num_sent = sum(part.num_sent for part in parts)
        self._num_numbers = self._num_sent + sum(part.entry.cut.tail for part in parts)
        num_scores = sum(part.entry.cut.num_blocks for part in parts)
        like = parts[0].entry.residual.held_RN
        self.buffer = like.new_empty(self._num_numbers + num_scores + 1)
        self._checksum = sum(int((p.rows + p.entry.span.start).sum()) for p in parts)
        self._checksum %= _CHECKSUM_MODULUS
        for part, sent, tail, scores in self._places(self.buffer):
            self._fill(part, sent, tail, scores)
        self.buffer[-1] = self._checksum
        self._taken = self.buffer[: self._num_sent].clone()

    def _places(
        self, buffer: torch.Tensor
    ) -> Iterator[tuple[Part, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The parts and their places in the buffer: blocks, tail, scores."""
        at, tail_at, score_at = 0, self._num_sent, self._num_numbers
        for part in self._parts:
            cut = part.entry.cut
            yield (
                part,
                buffer[at : at + part.num_sent],
                buffer[tail_at : tail_at + cut.tail],
                buffer[score_at : score_at + cut.num_blocks],
            )
            at, tail_at = at + part.num_sent, tail_at + cut.tail
            score_at += cut.num_blocks

    def _fill(
        self, part: Part, sent: torch.Tensor, tail: torch.Tensor, scores: torch.Tensor
    ) -> None:
        residual = part.entry.residual
        fresh_R = residual.absorb(part.in_blocks, scores)
        residual.take(part.rows, sent)
        # In blocks that are sent about one gradient more will wait next time.
        scores.index_copy_(0, part.rows, fresh_R.index_select(0, part.rows))
        tail.copy_(part.flat[part.entry.cut.blocked :])

    @property
    def is_finite(self) -> bool:
        """Whether all that came back, scores included, are numbers."""
        return bool(torch.isfinite(self.buffer.sum()))

    def agrees(self, num_ranks: int) -> bool:
        """Whether all ranks had chosen the same blocks."""
        return int(self.buffer[-1]) == self._checksum * num_ranks

    def unpack(self, num_ranks: int, scores_R: torch.Tensor) -> None:
        """Write means into the gradients, which are zero elsewhere, and scores where they belong.

        Args:
            num_ranks: sums are divided by this.
            scores_R: of the blocks of all parameters.
        """
        self.buffer[: self._num_numbers].div_(num_ranks)
        for part, sent, tail, scores in self._places(self.buffer):
            cut = part.entry.cut
            sent_RN = sent.to(part.flat.dtype).view(-1, cut.block_size)
            part.in_blocks.index_copy_(0, part.rows, sent_RN)
            part.flat[cut.blocked :] = tail
            scores_R[part.entry.span] = scores

    def give_back(self) -> None:
        """Put what was taken back into the residuals."""
        at = 0
        for part in self._parts:
            stop = at + part.num_sent
            part.entry.residual.give_back(part.rows, self._taken[at:stop])
            at = stop
