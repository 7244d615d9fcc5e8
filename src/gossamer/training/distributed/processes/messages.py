# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other: tensors, JSON and nested state, without pickle.

A message says the shape and type of its tensor first, so that no rank need know them beforehand.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gossamer.io.safe_files.dtypes import DTYPES
from gossamer.training.checkpoint.state_tree import decode, encode

__all__ = [
    "broadcast_json",
    "broadcast_tensor",
    "gather_json",
    "global_rank",
    "receive_tensor",
    "receive_tree",
    "send_tensor",
    "send_tree",
]

Group = dist.ProcessGroup | None
_CPU = torch.device("cpu")
_DTYPES = tuple(DTYPES.values())
_MAX_DIMS = 32


def global_rank(rank: int, group: Group) -> int:
    """The rank among all processes of a rank in a group."""
    return rank if group is None else dist.get_global_rank(group, rank)


def send_tensor(tensor: torch.Tensor, to: int, group: Group) -> None:
    """Send a tensor to another rank, which calls `receive_tensor`."""
    _carried(tensor, lambda part: dist.send(part, to, group))


def receive_tensor(sender: int, group: Group, device: torch.device = _CPU) -> torch.Tensor:
    """What `send_tensor` of another rank gave."""
    return _carried(None, lambda part: dist.recv(part, sender, group), device)


def broadcast_tensor(
    tensor: torch.Tensor | None, rank: int, group: Group, device: torch.device = _CPU
) -> torch.Tensor:
    """What `rank` of the group gave, on all its ranks; the others give None."""
    source = global_rank(rank, group)
    return _carried(tensor, lambda part: dist.broadcast(part, source, group), device)


def _carried(
    tensor: torch.Tensor | None, carry: Callable[[torch.Tensor], Any], device: torch.device = _CPU
) -> torch.Tensor:
    """A tensor after `carry` sent its header and its bytes, or received them if it is None."""
    if tensor is None:
        header = torch.empty(_MAX_DIMS + 2, dtype=torch.int64, device=device)
        carry(header)
        dtype, num_dims, *dims = header.tolist()
        tensor = torch.empty(dims[:num_dims], dtype=_DTYPES[dtype], device=device)
    else:
        dims = list(tensor.shape) + [0] * (_MAX_DIMS - tensor.ndim)
        carry(torch.tensor([_DTYPES.index(tensor.dtype), tensor.ndim, *dims], device=tensor.device))
        tensor = tensor.contiguous()
    if tensor.numel():
        # gloo does not know every dtype.
        carry(tensor.detach().flatten().view(torch.uint8))
    return tensor


def broadcast_json(content: Any, group: Group = None) -> Any:
    """What rank 0 of the group gives, on all ranks."""
    raw = _json_bytes(content) if dist.get_rank(group) == 0 else None
    return _parsed(broadcast_tensor(raw, 0, group))


def gather_json(content: Any, group: Group = None) -> list[Any]:
    """What every rank of the group gives, in their order, on all of them."""
    raw = _json_bytes(content)
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    sizes[dist.get_rank(group)] = raw.numel()
    dist.all_reduce(sizes, group=group)
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
    padded[: raw.numel()] = raw
    rows = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group)
    return [_parsed(row[:size]) for row, size in zip(rows, sizes.tolist(), strict=True)]


def send_tree(tree: Any, to: int, group: Group) -> None:
    """Send nested state, as checkpoints hold it, to another rank."""
    plain, tensors = encode(tree)
    send_tensor(_json_bytes([plain, list(tensors)]), to, group)
    for tensor in tensors.values():
        send_tensor(tensor, to, group)


def receive_tree(sender: int, group: Group) -> Any:
    """What `send_tree` of another rank gave."""
    plain, names = _parsed(receive_tensor(sender, group))
    return decode(plain, {name: receive_tensor(sender, group) for name in names}, "message")


def _json_bytes(content: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)


def _parsed(raw: torch.Tensor) -> Any:
    return json.loads(bytes(raw.numpy()))
