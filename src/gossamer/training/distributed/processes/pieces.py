# SPDX-License-Identifier: Apache-2.0
"""Tensors that may be larger than memory, from rank to rank, a piece at a time.

Both sides know the size; what is sent is read, and what comes is written, where it lies.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from gossamer.errors import InputError
from gossamer.training.distributed.processes.messages import global_rank

__all__ = ["broadcast_into", "receive_into", "send_pieces"]

Group = dist.ProcessGroup | None
_PIECE_BYTES = 2**24


def send_pieces(tensor: torch.Tensor, to: int, group: Group) -> None:
    """Send the numbers of a contiguous tensor to a rank that calls `receive_into`."""
    for piece in _pieces(tensor):
        dist.send(piece, to, group)


def receive_into(tensor: torch.Tensor, sender: int, group: Group) -> None:
    """Fill a contiguous tensor with what `send_pieces` of another rank gave, of the same size."""
    for piece in _pieces(tensor):
        dist.recv(piece, sender, group)


def broadcast_into(
    source: torch.Tensor | None, into: torch.Tensor | None, num_bytes: int, group: Group
) -> None:
    """What rank 0 of the group has, piece by piece into the tensors of those that want it.

    Args:
        source: contiguous; of rank 0, None elsewhere.
        into: contiguous, of the same size; None if this rank has the numbers.
        num_bytes: of the tensor.
        group: the ranks.
    """
    held = into if source is None else source
    pieces = None if held is None else _pieces(held)
    first = global_rank(0, group)
    for start in range(0, num_bytes, _PIECE_BYTES):
        size = min(_PIECE_BYTES, num_bytes - start)
        passing = torch.empty(size, dtype=torch.uint8) if pieces is None else next(pieces)
        dist.broadcast(passing, first, group)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The bytes of a contiguous tensor, a few at a time; views."""
    if not tensor.is_contiguous():
        raise InputError("messages: pieces are of a contiguous tensor.")
    if tensor.numel():
        yield from torch.split(tensor.detach().view(-1).view(torch.uint8), _PIECE_BYTES)
