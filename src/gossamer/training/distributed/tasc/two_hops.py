# SPDX-License-Identifier: Apache-2.0
"""An all-reduce that waits for others twice, for buffers so small that waiting is what they cost.

A ring of W ranks waits 2 (W-1) times, and on busy cores each time costs a turn of the scheduler:
four ranks on two cores took 7.8 ms for 1000 numbers, this way 5.1. Here every rank sends a piece to
each other rank, adds up the piece it owns, and sends that to all: the same bytes as a ring.

Legend: W ranks, C elements of a piece.
"""

import torch
import torch.distributed as dist

# Beyond this many bytes gloo's ring, which cuts its messages, was faster.
MOST_BYTES = 1 << 21


def padded_size(size: int, num_ranks: int) -> int:
    """Elements that a buffer must have so that all ranks own equal pieces."""
    return -(-size // num_ranks) * num_ranks


def all_reduce_in_two_hops(buffer: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Add up over all ranks, in place; in the order of ranks, the same bits on all of them."""
    num_ranks = dist.get_world_size(group)
    pieces_WC = torch.empty_like(buffer).view(num_ranks, -1)
    dist.all_to_all_single(pieces_WC.view(-1), buffer, group=group)
    own_C = pieces_WC.sum(0)
    pieces_WC.copy_(own_C)
    dist.all_to_all_single(buffer, pieces_WC.view(-1), group=group)
