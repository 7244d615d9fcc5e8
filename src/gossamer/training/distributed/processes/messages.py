# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other: tensors, JSON and nested state, without pickle.

A message says the shape and type of its tensor first, so that no rank need know them beforehand.

What must be equal on all ranks is checked by digest, and the first difference is named. Ranks with
different masks add up gradients of different weights without any error: kept values are vectors,
and vectors of one length fit each other.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import DistributedError
from gossamer.io.safe_files.tensors import DTYPES
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.training.checkpoint import Checkpoint
from gossamer.training.checkpoint.state_tree import decode, encode
from gossamer.training.distributed.processes.session import RankSession

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
        content = [_DTYPES.index(tensor.dtype), tensor.ndim, *dims]
        carry(torch.tensor(content, device=tensor.device))
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


def shared_checkpoint(session: RankSession, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that rank 0 has read, on all ranks: only its disk needs to have it."""
    head, tensors = None, dict[str, torch.Tensor]()
    if checkpoint is not None:
        plain, tensors = encode(checkpoint.state)
        head = [str(checkpoint.path), checkpoint.step, dict(checkpoint.run), plain, list(tensors)]
    head = broadcast_json(head, session.patient)
    if head is None:
        return None
    path, step, run, plain, names = head
    tensors = {name: broadcast_tensor(tensors.get(name), 0, session.patient) for name in names}
    return checkpoint or Checkpoint(Path(path), step, run, decode(plain, tensors, path))


def _json_bytes(content: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)


def _parsed(raw: torch.Tensor) -> Any:
    return json.loads(bytes(raw.numpy()))


def check_masks(model: nn.Module, when: str, group: Group = None) -> None:
    """Raise DistributedError on all ranks if a mask differs; one digest per rank travels."""
    digests = {name: layer.mask_digest() for name, layer in sparse_layers(model)}
    _check_equal(digests, f"the mask of layer {{}} differs {when}", group)


def check_alike(content: Mapping[str, Any], group: Group = None) -> None:
    """The same for what a run is: recipe, data, model, versions."""
    digests = {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
        for name, part in content.items()
    }
    _check_equal(digests, "the {} differs at the start", group)


def _check_equal(digests: dict[str, str], sentence: str, group: Group) -> None:
    whole = hashlib.sha256("\n".join(f"{k} {v}" for k, v in digests.items()).encode()).hexdigest()
    if len(set(gather_json(whole, group))) == 1:
        return
    # Layer by layer only now: the lists may be long.
    found: list[dict[str, str]] = gather_json(digests, group)
    first = found[0]
    names = list(dict.fromkeys(name for one in found for name in one))
    name = next(n for n in names if any(one.get(n) != first.get(n) for one in found))
    rank = next(r for r, one in enumerate(found) if one.get(name) != first.get(name))
    raise DistributedError(
        f"{sentence.format(name)} between ranks 0 and {rank}. Start all ranks with the same files"
        " and versions, and from the same checkpoint."
    )
