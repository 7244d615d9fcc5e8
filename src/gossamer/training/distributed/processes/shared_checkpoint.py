# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that one rank has read, on all ranks."""

from pathlib import Path

import torch

from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.io.safe_files.on_disk import is_on_disk, tensor_on_disk
from gossamer.training.checkpoint import Checkpoint, large_tensors
from gossamer.training.checkpoint.state_tree import decode, encode
from gossamer.training.distributed.processes.messages import (
    broadcast_json,
    broadcast_tensor,
    gather_json,
)
from gossamer.training.distributed.processes.pieces import broadcast_into
from gossamer.training.distributed.processes.session import RankSession

__all__ = ["shared_checkpoint"]


def shared_checkpoint(
    session: RankSession, checkpoint: Checkpoint | None, room: Path | None = None
) -> Checkpoint | None:
    """The checkpoint that rank 0 has read, on all ranks: only its disk needs to have it.

    Tensors that rank 0 left in their file (`read_checkpoint` with `mapped`) are held in memory by
    nobody. Ranks that see this file look into it, too. The others get a copy on a disk of theirs.

    Args:
        session: the ranks.
        checkpoint: of rank 0; None elsewhere.
        room: a folder for such copies, made where it is needed.
    """
    head, tensors = None, dict[str, torch.Tensor]()
    if checkpoint is not None:
        plain, tensors = encode(checkpoint.state)
        sizes = {n: (dtype_name(t.dtype), list(t.shape)) for n, t in tensors.items()}
        apart = {name: size for name, size in sizes.items() if is_on_disk(tensors[name])}
        head = [str(checkpoint.path), checkpoint.step, dict(checkpoint.run), plain, list(tensors)]
        head += [checkpoint.sha256, apart]
    head = broadcast_json(head, session.patient)
    if head is None:
        return None
    path, step, run, plain, names, sha256, apart = head
    found = tensors or (large_tensors(Path(path), sha256) if apart else {})
    wanting = gather_json(not found.keys() >= apart.keys(), session.patient)
    for name in names:
        if name not in apart:
            tensors[name] = broadcast_tensor(tensors.get(name), 0, session.patient)
            continue
        dtype, shape = DTYPE_NAMES[apart[name][0]], torch.Size(apart[name][1])
        is_wanting = wanting[session.rank]
        if is_wanting:
            folder = Path(path).parent if room is None else room
            folder.mkdir(parents=True, exist_ok=True)
            tensors[name] = tensor_on_disk(shape, dtype, folder)
        elif checkpoint is None:
            tensors[name] = found[name]
        if any(wanting):
            source = tensors[name] if session.is_lead else None
            into = tensors[name] if is_wanting else None
            num_bytes = shape.numel() * dtype.itemsize
            broadcast_into(source, into, num_bytes, session.patient)
    return checkpoint or Checkpoint(Path(path), step, run, decode(plain, tensors, path), sha256)
