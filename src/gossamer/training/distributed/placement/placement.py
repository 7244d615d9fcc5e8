# SPDX-License-Identifier: Apache-2.0
"""A model whose masks are final, laid out on the mesh: what this rank computes with and trains.

Cut in this order: heads and filters (tensor), layers (pipeline), entries of parameters (shard);
what is left is replicated along data. The optimizer follows: it holds the shards of this rank, with
their moments. The whole model keeps its tree and its names, without numbers, for the way back.

That may be days after the start, and nobody should learn then that it does not work: `check_model`
says before the first step what cannot be laid out.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gossamer.errors import InputError
from gossamer.io.safe_files.on_disk import is_on_disk
from gossamer.nn.layers.tables.late_rows import forget_late
from gossamer.nn.surgery.optimizer_state import check_state, convert_state
from gossamer.training.distributed.experts import check_experts, share_experts
from gossamer.training.distributed.mesh_sizes import MeshSizes
from gossamer.training.distributed.pipeline import LayerPipeline, find_links
from gossamer.training.distributed.pipeline.schedules import check_microbatches, stages_per_rank
from gossamer.training.distributed.placement.gradients import Wire
from gossamer.training.distributed.placement.tensor_parallel import (
    Positions,
    check_units,
    share_units,
)
from gossamer.training.distributed.processes import RankSession
from gossamer.training.distributed.tables import Sharding, shard_tables, sparse_tables
from gossamer.training.loop import TrainingRun
from gossamer.training.optim import LAMB, LARS


@dataclass
class ParameterShard:
    """A part of one parameter.

    Attributes:
        name: of the parameter in the whole model.
        whole: the whole model's Parameter; its numbers are elsewhere while shards are trained.
        shape: of the whole parameter.
        used: the Parameter that the local model computes with.
        trained: the Parameter that the optimizer holds; the same one, or a view of its shard.
        positions: entries of the flat whole that `used` holds, in its order; None for all of them.
        share: entries of the flat `used` that `trained` holds; None for all of them.
        copies: ranks that hold the same entries.
        over_data: whether data ranks hold different entries: rows of a table.
        over_expert: whether expert ranks hold different entries: some experts of a layer.
    """

    name: str
    whole: nn.Parameter
    shape: torch.Size
    used: nn.Parameter
    trained: nn.Parameter
    positions: Positions | None = None
    share: slice | None = None
    copies: int = 1
    over_data: bool = False
    over_expert: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the parameter as it is."""
        return self.positions is None and self.share is None

    def index(self) -> torch.Tensor | slice:
        """Entries of the flat whole that `trained` holds, in its order."""
        share = self.share or slice(0, self.shape.numel())
        return share if self.positions is None else self.positions()[share]

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a tensor of the whole parameter's shape, such as a moment."""
        if self.is_whole:
            return whole
        if self.over_data and whole.shape != self.shape and self.share is not None:
            # One number per row.
            width = self.shape[1]
            return whole[self.share.start // width : self.share.stop // width].clone()
        return whole.flatten()[self.index()].reshape(self.trained.shape).clone()


def structure_copy(model: nn.Module) -> nn.Module:
    """New modules, the same tensors; modules that are shared stay shared."""
    made = {}
    for module in model.modules():
        twin = module.__new__(type(module))
        # Tables of parameters, buffers, children and hooks are the twin's own.
        twin.__dict__ = {
            key: copy.copy(value) if isinstance(value, dict) else value
            for key, value in module.__dict__.items()
            # A forward on the instance is bound to the module it was put on.
            if key != "forward"
        }
        made[id(module)] = twin
    for twin in made.values():
        for name, child in twin._modules.items():
            if child is not None:
                twin._modules[name] = made[id(child)]
    return made[id(model)]


@dataclass(frozen=True)
class RankPlacement:
    """What this rank has of a model.

    Attributes:
        modules: what it computes with: the model, or its stages of a pipeline.
        pipeline: how its stages run; None without a pipeline.
        holders: of parameters that several stages use, the ranks of the pipeline that have them.
        shards: what it trains, in the order of the whole model.
        order: names of the whole optimizer's parameters, group by group.
        shapes: of all parameters of the whole model.
    """

    modules: list[nn.Module]
    pipeline: LayerPipeline | None
    holders: dict[str, list[int]]
    shards: list[ParameterShard]
    order: list[list[str]]
    shapes: dict[str, torch.Size]

    def step_traffic(
        self, sizes: MeshSizes, wire: Wire, apart: frozenset[nn.Parameter] = frozenset()
    ) -> dict[str, int]:
        """Bytes that a rank sends in a step with one batch, by purpose, as rings send them.

        Legend: N numbers of this rank, D replicas of them, S shard ranks. Replicas are data ranks,
        of what is no expert the expert ranks, too. An all-reduce sends 2 (D-1)/D N, a gather or a
        reduce-scatter (S-1)/S N. (gloo reduce-scatters by an all-reduce, twice as much.)
        Parameters in `apart` go other ways.
        """
        held = [shard.trained for shard in self.shards if shard.used not in apart]
        experts = sum(shard.trained.nbytes for shard in self.shards if shard.over_expert)
        full = sum(param.nbytes for param in held)
        halves = sum(param.numel() * 2 for param in held)
        sent = halves if wire == "bf16" and sizes.shard == 1 else full
        gathered = (sizes.shard - 1) * full
        replicas = sizes.data * sizes.expert
        found = {
            # Shards of gradients go to their ranks first.
            "gradients": round(2 * (replicas - 1) / replicas * sent + gathered),
            "experts": round(2 * (sizes.data - 1) / sizes.data * experts),
            # Once for forward, once more for backward.
            "parameters": 2 * gathered,
            "activations": 0 if self.pipeline is None else self.pipeline.sent_bytes,
        }
        return {purpose: num_bytes for purpose, num_bytes in found.items() if num_bytes}

    def collect_gradients(self) -> None:
        """Hand gradients of sharded parameters to the optimizer's views of them."""
        for shard in self.shards:
            used = shard.used
            if isinstance(used, DTensor):
                shard.trained.data = used.to_local().detach()
                grad = used.grad
                shard.trained.grad = grad.to_local() if isinstance(grad, DTensor) else None
                used.grad = None


def check_model(
    sizes: MeshSizes,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: str,
    schedule: str,
    microbatches: int,
) -> None:
    """Refuse what cannot be laid out; masks may still move."""
    names = {param: name for name, param in model.named_parameters()}
    held = {param for group in optimizer.param_groups for param in group["params"]}
    strangers = [p for p in held if p not in names]
    if strangers:
        raise InputError(
            f"mesh: the optimizer holds {len(strangers)} parameters that the model has not, such as"
            " those of a loss. Use one process, or put them into the model."
        )
    if sizes.shard * sizes.tensor * sizes.expert > 1 and isinstance(optimizer, LAMB | LARS):
        raise InputError(
            f"mesh: {type(optimizer).__name__} needs norms of whole weights, which shard, tensor"
            " and expert cut up. Use data and pipeline with it, or adamw."
        )
    if sizes.pipeline > 1 and isinstance(optimizer, LAMB) and optimizer.normalised:
        raise InputError(
            "mesh: LAMB with normalised needs the norm of all gradients, which pipeline cuts up."
            " Use data with it, or leave normalised out."
        )
    if sizes.shard * sizes.tensor * sizes.expert > 1 and any(
        group.get("moments") == "8bit" for group in optimizer.param_groups
    ):
        raise InputError(
            "mesh: 8-bit moments share exponents across entries, which shard, tensor and expert cut"
            " up. Use moments: fp32, or data and pipeline only."
        )
    for param in held:
        check_state(optimizer, param, names[param])
    tables = sparse_tables(model)
    if sizes.shard * sizes.tensor * sizes.pipeline > 1 and tables:
        raise InputError(
            f"mesh: {next(iter(tables))} has gradients of touched rows, which shard, tensor and"
            " pipeline cannot cut. Use data only, or sparse=False in the layer."
        )
    check_experts(sizes, model)
    if sizes.tensor > 1:
        check_units(model, sizes.tensor)
    _check_16_bits(sizes, optimizer, precision)
    if sizes.pipeline == 1:
        return
    check_microbatches(schedule, microbatches, sizes.pipeline)
    find_links(model, sizes.pipeline * stages_per_rank(schedule, None))


def _check_16_bits(sizes: MeshSizes, optimizer: torch.optim.Optimizer, precision: str) -> None:
    """Refuse what 16-bit products, a scaled loss and SAMO's dense weights do not go with."""
    if sizes.pipeline > 1 and precision != "fp32":
        raise InputError(
            f"mesh.pipeline: precision {precision} and a pipeline do not go together. Use"
            " precision: fp32, or data, shard and tensor."
        )
    cuts = sizes.shard * sizes.tensor * sizes.pipeline * sizes.expert > 1
    if cuts and any(group.get("master") == "wide" for group in optimizer.param_groups):
        raise InputError(
            "mesh: SAMO's dense weights (master wide) cannot be cut by shard, tensor, pipeline and"
            " expert. Use data with it, or another compaction."
        )


def lay_out(
    session: RankSession,
    run: TrainingRun,
    make_pipeline: Callable[[nn.Module], LayerPipeline] | None,
    tables: Sharding = "none",
    talk: dist.ProcessGroup | None = None,
) -> RankPlacement:
    """Cut the model of `run` for this rank; model and optimizer are changed in place.

    Args:
        session: the processes of the mesh.
        run: its model is whole, on every rank the same, and passed `check_model`. Its
            schedule follows what this rank trains of which parameter, while masks are still there.
        make_pipeline: cuts a model into stages; None without a pipeline.
        tables: how rows of tables are shared by data ranks.
        talk: those ranks, for tables alone.
    """
    sizes, model, optimizer = session.sizes, run.model, run.optimizer
    names = {param: name for name, param in model.named_parameters()}
    order = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    shapes = {name: param.shape for param, name in names.items()}
    local = structure_copy(model)
    cuts = share_units(local, session.group("tensor")) if sizes.tensor > 1 else {}
    rows = shard_tables(local, tables, talk)
    experts = share_experts(local, session.group("expert")) if sizes.expert > 1 else {}
    forget_late(model)
    pipeline, holders, modules = None, {}, [local]
    if make_pipeline is not None:
        pipeline = make_pipeline(local)
        modules = list(pipeline.modules.values())
        for tied in pipeline.cut.tied:
            ranks = {pipeline.rank_of(stage) for stage in tied.stages}
            holders[names[local.get_parameter(tied.names[0])]] = sorted(ranks)
    used = {}
    for param in (param for module in modules for param in module.parameters()):
        whole, positions = cuts.get(param, (param, None))
        share = None
        if param in rows or param in experts:
            whole, share = rows[param] if param in rows else experts[param]
        name = names[whole]
        copies = sizes.num_parts * len(holders.get(name, [0]))
        if positions is None:
            copies *= sizes.tensor
        over_data, over_expert = param in rows, param in experts
        copies //= (sizes.data if over_data else 1) * (sizes.expert if over_expert else 1)
        used[param] = ParameterShard(
            name, whole, whole.shape, param, param, positions, share, copies, over_data, over_expert
        )
    places = {name: index for index, name in enumerate(shapes)}
    shards = sorted(used.values(), key=lambda shard: places[shard.name])
    if sizes.shard > 1:
        _shard(session, modules, shards)
    _follow(optimizer, shards)
    run.control.follow({shard.whole: (shard.trained, shard.index()) for shard in shards})
    _give_away(model, shards, modules, keep_buffers=session.is_lead)
    return RankPlacement(modules, pipeline, holders, shards, order, shapes)


def _shard(session: RankSession, modules: list[nn.Module], shards: list[ParameterShard]) -> None:
    """FSDP2 over the shard axis, and over data where there are replicas of shards."""
    sizes = session.sizes
    axes = ("data", "shard") if sizes.data > 1 else ("shard",)
    places = [
        (shard, owner, key)
        for shard in shards
        for module in modules
        for owner in module.modules()
        for key, param in owner._parameters.items()
        if param is shard.used
    ]
    empty = {shard.used for shard in shards if shard.used.numel() == 0}
    for module in modules:
        # What is gathered and freed on its own: elements of lists of layers.
        lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
        blocks = [block for child in lists for block in child]
        for part in (*(b for b in blocks if any(True for _ in b.parameters())), module):
            fully_shard(part, mesh=session.mesh[axes], ignored_params=empty)
    index, count = session.place.shard, sizes.shard
    for shard, owner, key in places:
        new: Any = owner._parameters[key]
        if new is shard.used:
            continue
        # As FSDP2 cuts: along the first dimension, whole chunks first.
        rows = shard.used.shape[0]
        width = shard.used[0].numel() if rows else 1
        each = -(-rows // count)
        start, stop = (min(place * each, rows) * width for place in (index, index + 1))
        shard.used, shard.share = new, slice(start, stop)
        shard.trained = nn.Parameter(new.to_local().detach(), requires_grad=new.requires_grad)
        shard.copies //= count


def _follow(optimizer: torch.optim.Optimizer, shards: list[ParameterShard]) -> None:
    """Let the optimizer hold the shards of this rank and nothing else."""
    # States first: who holds which parameter is asked of the groups.
    states: dict[torch.Tensor, Any] = {
        shard.trained: {key: _in_memory(part) for key, part in optimizer.state[shard.whole].items()}
        if shard.is_whole
        else convert_state(optimizer, shard.whole, shard.cut)
        for shard in shards
        if shard.whole in optimizer.state
    }
    trained = {shard.whole: shard.trained for shard in shards}
    for group in optimizer.param_groups:
        group["params"] = [trained[p] for p in group["params"] if p in trained]
    optimizer.state.clear()
    optimizer.state.update(states)


def _in_memory(part: Any) -> Any:
    """State that a checkpoint left in its file: what is trained whole here is not to stay there."""
    return part.clone() if isinstance(part, torch.Tensor) and is_on_disk(part) else part


def _give_away(
    model: nn.Module, shards: list[ParameterShard], modules: list[nn.Module], *, keep_buffers: bool
) -> None:
    """Free what this rank does not compute with; the leading one keeps all masks for files."""
    kept = {shard.trained for shard in shards}
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
