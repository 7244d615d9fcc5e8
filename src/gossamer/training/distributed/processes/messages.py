# SPDX-License-Identifier: Apache-2.0
"""Small things that cross the network: JSON and named tensors, without pickle."""

import json
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist


def broadcast_json(content: Any, group: dist.ProcessGroup | None = None) -> Any:
    """What rank 0 of the group gives, on all ranks."""
    src = dist.get_global_rank(group, 0) if group is not None else 0
    raw = json.dumps(content).encode() if dist.get_rank() == src else b""
    size = torch.tensor([len(raw)])
    dist.broadcast(size, src, group)
    data = _bytes(raw) if raw else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, src, group)
    return json.loads(bytes(data.numpy()))


def gather_json(content: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What every rank of the group gives, in their order, on all of them."""
    raw = _bytes(json.dumps(content).encode())
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    sizes[dist.get_rank(group)] = raw.numel()
    dist.all_reduce(sizes, group=group)
    longest = int(sizes.max())
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: raw.numel()] = raw
    rows = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group)
    return [
        json.loads(bytes(row[:size].numpy()))
        for row, size in zip(rows, sizes.tolist(), strict=True)
    ]


def send_tensors(
    tensors: dict[str, torch.Tensor], to: int, group: dist.ProcessGroup | None
) -> None:
    """Named tensors to another rank, as the bytes of a safetensors file."""
    raw = _bytes(safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()}))
    dist.send(torch.tensor([raw.numel()]), to, group)
    dist.send(raw, to, group)


def receive_tensors(sender: int, group: dist.ProcessGroup | None) -> dict[str, torch.Tensor]:
    """What `send_tensors` of another rank gave."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, sender, group)
    raw = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(raw, sender, group)
    return safetensors.torch.load(bytes(raw.numpy()))


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
