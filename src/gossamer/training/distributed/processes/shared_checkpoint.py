# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that the leading rank has read, on all ranks: only its disk needs to have it."""

from pathlib import Path

import torch
import torch.distributed as dist

from gossamer.io.safe_files.tensor_header import DTYPE_NAMES, dtype_name
from gossamer.training.checkpoint.folders import Checkpoint
from gossamer.training.checkpoint.state_tree import decode, encode
from gossamer.training.distributed.processes.messages import broadcast_json
from gossamer.training.distributed.processes.session import Session


def shared_checkpoint(session: Session, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """What rank 0 gives; the others give None."""
    plain, tensors = encode(checkpoint.state) if checkpoint is not None else (None, {})
    head = None
    if checkpoint is not None:
        head = {
            "path": str(checkpoint.path),
            "step": checkpoint.step,
            "run": dict(checkpoint.run),
            "plain": plain,
            "tensors": {n: [dtype_name(t.dtype), list(t.shape)] for n, t in tensors.items()},
        }
    head = broadcast_json(head, session.patient)
    if head is None:
        return None
    for name, (dtype, shape) in head["tensors"].items():
        if not session.is_lead:
            tensors[name] = torch.empty(shape, dtype=DTYPE_NAMES[dtype])
        # Bytes, because gloo does not know every dtype.
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        if flat.numel():
            dist.broadcast(flat, 0, session.patient)
    if checkpoint is not None:
        return checkpoint
    path = Path(head["path"])
    return Checkpoint(path, head["step"], head["run"], decode(head["plain"], tensors, str(path)))
