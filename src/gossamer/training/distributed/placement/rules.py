# SPDX-License-Identifier: Apache-2.0
"""What cannot be laid out on a mesh, found before the first step.

Models are cut when their masks are final, which may be days after the start; nobody should learn
then that it does not work.
"""

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.compaction import check_state
from gossamer.training.distributed.mesh_sizes import MeshSizes
from gossamer.training.distributed.pipeline.cutting import find_links
from gossamer.training.distributed.pipeline.schedules import check_microbatches, stages_per_rank
from gossamer.training.distributed.placement.tensor_parallel import check_units
from gossamer.training.optim import LAMB, LARS


def check_model(
    sizes: MeshSizes,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    precision: str,
    schedule: str,
    microbatches: int,
) -> None:
    """Refuse what cannot be laid out; masks may still move."""
    _check_optimizer(sizes, model, optimizer)
    if sizes.tensor > 1:
        check_units(model, sizes.tensor)
    if sizes.pipeline == 1:
        return
    if precision == "bf16":
        raise InputError(
            "mesh.pipeline: precision bf16 and a pipeline do not go together. Use precision: fp32,"
            " or data, shard and tensor."
        )
    check_microbatches(schedule, microbatches, sizes.pipeline)
    find_links(model, sizes.pipeline * stages_per_rank(schedule, None))


def _check_optimizer(sizes: MeshSizes, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose state cannot be cut as `sizes` says."""
    names = {param: name for name, param in model.named_parameters()}
    held = {param for group in optimizer.param_groups for param in group["params"]}
    strangers = [p for p in held if p not in names]
    if strangers:
        raise InputError(
            f"mesh: the optimizer holds {len(strangers)} parameters that the model has not, such as"
            " those of a loss. Use one process, or put them into the model."
        )
    if sizes.shard * sizes.tensor > 1 and isinstance(optimizer, LAMB | LARS):
        raise InputError(
            f"mesh: {type(optimizer).__name__} needs norms of whole weights, which shard and tensor"
            " cut up. Use data and pipeline with it, or adamw."
        )
    if sizes.shard * sizes.tensor > 1 and any(
        group.get("moments") == "8bit" for group in optimizer.param_groups
    ):
        raise InputError(
            "mesh: 8-bit moments share exponents across entries, which shard and tensor cut up. Use"
            " moments: fp32, or data and pipeline only."
        )
    for param in held:
        check_state(optimizer, param, names[param])
