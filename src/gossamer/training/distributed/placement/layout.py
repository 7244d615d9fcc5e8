# SPDX-License-Identifier: Apache-2.0
"""A model whose masks are final, laid out on the grid: what this rank computes with and trains.

Cut in this order: heads and filters (tensor), layers (pipeline), entries of parameters (shard);
what is left is replicated along data. The optimizer follows: it holds the pieces of this rank, with
their moments. The whole model keeps its tree and its names, without numbers, for the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gossamer.nn.optimizer_state import Part, convert_state
from gossamer.training.distributed.pipeline.pipeline import Pipeline
from gossamer.training.distributed.placement.pieces import Piece
from gossamer.training.distributed.placement.rules import check_optimizer
from gossamer.training.distributed.placement.structure_copy import structure_copy
from gossamer.training.distributed.placement.tensor_parallel import Cuts, share_units
from gossamer.training.distributed.processes.mesh_sizes import MeshSizes
from gossamer.training.distributed.processes.session import Session


@dataclass(frozen=True)
class Layout:
    """What this rank has of a model.

    Attributes:
        modules: what it computes with: the model, or its stages of a pipeline.
        pipeline: how its stages run; None without a pipeline.
        holders: of parameters that several stages use, the ranks of the pipeline that have them.
        pieces: what it trains, in the order of the whole model.
        order: names of the whole optimizer's parameters, group by group.
        shapes: of all parameters of the whole model.
    """

    modules: list[nn.Module]
    pipeline: Pipeline | None
    holders: dict[str, list[int]]
    pieces: list[Piece]
    order: list[list[str]]
    shapes: dict[str, torch.Size]

    @property
    def num_values(self) -> int:
        """Numbers that this rank trains."""
        return sum(piece.trained.numel() for piece in self.pieces)

    def collect_gradients(self) -> None:
        """Hand gradients of sharded parameters to the optimizer's views of them."""
        for piece in self.pieces:
            used = piece.used
            if isinstance(used, DTensor):
                piece.trained.data = used.to_local().detach()
                grad = used.grad
                piece.trained.grad = grad.to_local() if isinstance(grad, DTensor) else None
                used.grad = None


def lay_out(
    session: Session,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    make_pipeline: Callable[[nn.Module], Pipeline] | None,
    *,
    follow: Callable[[dict[nn.Parameter, Part]], None],
) -> Layout:
    """Cut `model` for this rank; `model` and `optimizer` are changed in place.

    Args:
        session: the grid.
        model: whole, on every rank the same.
        optimizer: of the whole model, with its state.
        make_pipeline: cuts a model into stages; None without a pipeline.
        follow: is told what this rank trains of which parameter, while masks are still there.
    """
    sizes = session.sizes
    names = {param: name for name, param in model.named_parameters()}
    check_optimizer(sizes, names, optimizer)
    order = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    shapes = {name: param.shape for param, name in names.items()}
    local = structure_copy(model)
    cuts: Cuts = {}
    if sizes.tensor > 1:
        cuts = share_units(local, session.group("tensor"))
    pipeline, holders, modules = None, {}, [local]
    if make_pipeline is not None:
        pipeline = make_pipeline(local)
        modules = list(pipeline.modules.values())
        holders = _holders(pipeline, local, names)
    used = _used(modules, names, cuts, sizes, holders)
    if sizes.shard > 1:
        _shard(session, modules, used)
    places = {name: index for index, name in enumerate(shapes)}
    pieces = sorted(used, key=lambda piece: places[piece.name])
    _follow(optimizer, pieces)
    follow({piece.whole: (piece.trained, piece.index()) for piece in pieces})
    _give_away(model, pieces, modules, keep_buffers=session.is_lead)
    return Layout(modules, pipeline, holders, pieces, order, shapes)


def _holders(
    pipeline: Pipeline, local: nn.Module, names: dict[nn.Parameter, str]
) -> dict[str, list[int]]:
    return {
        names[local.get_parameter(tied.names[0])]: sorted(
            {pipeline.rank_of(stage) for stage in tied.stages}
        )
        for tied in pipeline.cut.tied
    }


def _used(
    modules: list[nn.Module],
    names: dict[nn.Parameter, str],
    cuts: Cuts,
    sizes: MeshSizes,
    holders: dict[str, list[int]],
) -> list[Piece]:
    found: dict[nn.Parameter, Piece] = {}
    for module in modules:
        for param in module.parameters():
            if param in found:
                continue
            whole, positions = cuts.get(param, (param, None))
            name = names[whole]
            copies = sizes.data * sizes.shard * len(holders.get(name, [0]))
            if positions is None:
                copies *= sizes.tensor
            found[param] = Piece(name, whole, whole.shape, param, param, positions, copies=copies)
    return list(found.values())


def _shard(session: Session, modules: list[nn.Module], pieces: list[Piece]) -> None:
    """FSDP2 over the shard axis, and over data where there are replicas of shards."""
    sizes = session.sizes
    axes = ("data", "shard") if sizes.data > 1 else ("shard",)
    places = [
        (piece, owner, key)
        for piece in pieces
        for module in modules
        for owner in module.modules()
        for key, param in owner._parameters.items()
        if param is piece.used
    ]
    empty = {piece.used for piece in pieces if piece.used.numel() == 0}
    for module in modules:
        for block in _blocks(module):
            fully_shard(block, mesh=session.mesh[axes], ignored_params=empty)
        fully_shard(module, mesh=session.mesh[axes], ignored_params=empty)
    index, count = session.place.shard, sizes.shard
    for piece, owner, key in places:
        new: Any = owner._parameters[key]
        if new is piece.used:
            continue
        # As FSDP2 cuts: along the first dimension, whole chunks first.
        rows = piece.used.shape[0]
        width = piece.used[0].numel() if rows else 1
        each = -(-rows // count)
        start, stop = (min(place * each, rows) * width for place in (index, index + 1))
        piece.used, piece.share = new, slice(start, stop)
        piece.trained = nn.Parameter(new.to_local().detach(), requires_grad=new.requires_grad)
        piece.copies //= count


def _blocks(module: nn.Module) -> list[nn.Module]:
    """What is gathered and freed on its own: elements of lists of layers."""
    return [
        block
        for child in module.modules()
        if isinstance(child, nn.ModuleList)
        for block in child
        if any(True for _ in block.parameters())
    ]


def _follow(optimizer: torch.optim.Optimizer, pieces: list[Piece]) -> None:
    """Let the optimizer hold the pieces of this rank and nothing else."""
    by_whole = {piece.whole: piece for piece in pieces}
    states: dict[torch.Tensor, Any] = {}
    for group in optimizer.param_groups:
        held = [by_whole[p] for p in group["params"] if p in by_whole]
        for piece in held:
            if piece.whole in optimizer.state:
                states[piece.trained] = (
                    optimizer.state[piece.whole]
                    if piece.is_whole
                    else convert_state(optimizer, piece.whole, piece.cut)
                )
        group["params"] = [piece.trained for piece in held]
    optimizer.state.clear()
    optimizer.state.update(states)


def _give_away(
    model: nn.Module, pieces: list[Piece], modules: list[nn.Module], *, keep_buffers: bool
) -> None:
    """Free what this rank does not compute with; the leading one keeps all masks for files."""
    kept = {piece.trained for piece in pieces}
    for param in model.parameters():
        if param not in kept:
            param.grad = None
            param.data = param.data.new_empty(0)
    if keep_buffers:
        return
    used = {id(buffer) for module in modules for buffer in module.buffers()}
    for buffer in model.buffers():
        if id(buffer) not in used:
            buffer.data = buffer.data.new_empty(0)
