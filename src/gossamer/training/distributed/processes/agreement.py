# SPDX-License-Identifier: Apache-2.0
"""What must be equal on all ranks: checked by digest, and the first difference is named.

Ranks with different masks add up gradients of different weights without any error: kept values are
vectors, and vectors of one length fit each other.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import DistributedError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.training.checkpoint import Checkpoint
from gossamer.training.checkpoint.state_tree import decode, encode
from gossamer.training.distributed.processes.messages import (
    broadcast_json,
    broadcast_tensor,
    gather_json,
)
from gossamer.training.distributed.processes.session import RankSession

Group = dist.ProcessGroup | None


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
