# SPDX-License-Identifier: Apache-2.0
"""What one bucket sends: one dense buffer, laid out alike on all ranks, that needs no indices.

Blocks that were chosen, then what always travels (biases, norms), then the scores of all blocks of
the bucket, then a checksum of the choice.

Legend: R blocks, A of them sent, N elements of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gossamer.training.distributed.tasc.blocks import BlockedParameter

# Sums of checksums over 4096 ranks are exact in fp32.
_CHECKSUM_MODULUS = 4093


@dataclass(frozen=True, eq=False)
class PacketPart:
    """A parameter in a packet: its blocks to send, and its places in the buffer."""

    entry: BlockedParameter
    rows: torch.Tensor
    sent: torch.Tensor
    tail: torch.Tensor
    scores: torch.Tensor

    def fill(self, gradient: torch.Tensor | None, *, adds: bool = False) -> None:
        """Let the residual absorb a flat gradient, and put what travels into the buffer.

        Args:
            gradient: None stands for zeros.
            adds: to one that was absorbed in this step already.
        """
        cut, held_RN = self.entry.cut, self.entry.held_RN
        if gradient is None:
            gradient = held_RN.new_zeros(cut.blocked + cut.tail)
        if cut.num_blocks:
            fresh_R = self.entry.absorb(cut.in_blocks(gradient), self.scores)
            torch.index_select(held_RN, 0, self.rows, out=self.sent.view(-1, cut.block_size))
            # In blocks that are sent about one gradient more will wait next time.
            self.scores.index_copy_(0, self.rows, fresh_R.index_select(0, self.rows))
        if cut.tail:
            rest = gradient[cut.blocked :]
            self.tail.copy_(self.tail + rest if adds else rest)

    def write(self, gradient: torch.Tensor) -> None:
        """Write what came back into a flat gradient; blocks that were not sent are left alone."""
        cut = self.entry.cut
        if cut.num_blocks:
            sent_AN = self.sent.to(gradient.dtype).view(-1, cut.block_size)
            cut.in_blocks(gradient).index_copy_(0, self.rows, sent_AN)
        if cut.tail:
            gradient[cut.blocked :] = self.tail


class Packet:
    """The buffer of some parameters: filled part by part, all-reduced, and read part by part.

    Args:
        chosen: the parameters and their blocks to send.
        num_ranks: must own equal pieces of the buffer, which gets zeros behind it for that.
    """

    def __init__(
        self,
        chosen: Sequence[tuple[BlockedParameter, torch.Tensor]],
        num_ranks: int = 1,
    ) -> None:
        # In the order of the model: a bucket's own order is another before DDP has made its buckets
        # anew, and in a ring the place of a number decides in which order ranks are added.
        chosen = sorted(chosen, key=lambda pair: pair[0].index)
        cuts = [entry.cut for entry, _ in chosen]
        sent = [len(rows) * entry.cut.block_size for entry, rows in chosen]
        tails, scores = [cut.tail for cut in cuts], [cut.num_blocks for cut in cuts]
        self._num_numbers = sum(sent + tails)
        size = self._num_numbers + sum(scores) + 1
        self.padded = chosen[0][0].held_RN.new_empty(padded_size(size, num_ranks))
        self.padded[size:] = 0
        self.buffer = self.padded[:size]
        pieces = torch.split(self.buffer[:-1], sent + tails + scores)
        self.parts = [
            PacketPart(*pair, *pieces[index :: len(chosen)]) for index, pair in enumerate(chosen)
        ]
        blocks = sum(int(rows.sum()) + len(rows) * entry.span.start for entry, rows in chosen)
        self._checksum = blocks % _CHECKSUM_MODULUS
        self.buffer[-1] = self._checksum

    def agrees(self, num_ranks: int) -> bool:
        """Whether all ranks had chosen the same blocks."""
        return int(self.buffer[-1]) == self._checksum * num_ranks

    def read(self, num_ranks: int, scores_R: torch.Tensor) -> bool:
        """Make means of the sums that came back, and put scores where they belong among all blocks.

        False, and nothing else, if something that came back, scores included, is no number.
        """
        if not torch.isfinite(self.buffer.sum()):
            return False
        self.buffer[: self._num_numbers].div_(num_ranks)
        for part in self.parts:
            scores_R[part.entry.span] = part.scores
        return True

    def clear(self) -> None:
        """Forget what was sent: it has arrived."""
        for part in self.parts:
            part.entry.held_RN.index_fill_(0, part.rows, 0)


# Beyond this many bytes gloo's ring, which cuts its messages, was faster.
MOST_BYTES = 1 << 21


def padded_size(size: int, num_ranks: int) -> int:
    """Elements that a buffer must have so that all ranks own equal pieces."""
    return -(-size // num_ranks) * num_ranks


def all_reduce_in_two_hops(buffer: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Add up over all ranks, in place; in the order of ranks, the same bits on all of them."""
    pieces_WC = torch.empty_like(buffer).view(dist.get_world_size(group), -1)
    dist.all_to_all_single(pieces_WC.view(-1), buffer, group=group)
    pieces_WC.copy_(pieces_WC.sum(0))
    dist.all_to_all_single(buffer, pieces_WC.view(-1), group=group)
