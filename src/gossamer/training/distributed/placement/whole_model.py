# SPDX-License-Identifier: Apache-2.0
"""The way back: shards of all ranks become the whole model and optimizer on the leading rank.

What comes out is what a single process has, so checkpoints and artifacts do not depend on the mesh.
Figures of the whole model need all ranks, too: a rank's own layers say nothing about it. What the
cut does not change (zeros, buffers) is noted before it. What training changes is added up over the
ranks, and entries that several ranks hold count once.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.io.safe_files.on_disk import LARGE, tensor_on_disk
from gossamer.nn.layers.parts import DenseHome
from gossamer.training.distributed.placement.placement import ParameterShard, RankPlacement
from gossamer.training.distributed.processes import RankSession
from gossamer.training.distributed.processes.messages import (
    gather_json,
    receive_tree,
    send_tree,
)
from gossamer.training.distributed.processes.pieces import receive_into, send_pieces
from gossamer.training.loop import TrainingRun
from gossamer.training.loop.processes import States, not_finite_gradients
from gossamer.training.memory import measure

_MASKS = "mask_bits"
# Among what the optimizer has of a table: its rows themselves.
_VALUE = "$value"
# Fills some rows of a whole table: its name, what of it, and where.
RowsOf = Callable[[str, str, torch.Tensor], object]


@dataclass
class WholeModel:
    """Tensors of the whole model, on the leading rank.

    Attributes:
        room: a folder in which large tables are put together, as files: none of them is in memory.
        parameters: by name.
        states: optimizer state by the name of its parameter.
        buffers: by name; those that training changes.
        entries: what the schedule knows of single entries, by the name of their parameter; one dict
            per rank that holds some.
    """

    room: Path | None = None
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    entries: dict[str, list[dict[str, torch.Tensor]]] = field(default_factory=dict)

    def add(self, given: dict[str, Any], shapes: dict[str, torch.Size], rows_of: RowsOf) -> None:
        """Put in what one rank gave; `rows_of` fills a part of a table with its rows there."""
        self.buffers |= given["buffers"]
        for name, shard in given["shards"].items():
            index, shape = shard["index"], shapes[name]
            if isinstance(index, tuple):
                index = slice(*index)
            if shard["rows"]:
                self._add_rows(name, shard["rows"], index, shape, rows_of)
            else:
                _put(self.parameters, name, shard["value"], index, shape)
            for key, tensor in shard["state"].items():
                state = self.states.setdefault(name, {})
                if not shard["rows"] and tensor.ndim and tensor.shape == shard["value"].shape:
                    _put(state, key, tensor, index, shape)
                else:
                    state[key] = tensor
            if shard["control"]:
                self.entries.setdefault(name, []).append(shard["control"])

    def _add_rows(
        self, name: str, rows: dict[str, Any], index: slice, shape: torch.Size, rows_of: RowsOf
    ) -> None:
        """Rows of a table and what the optimizer has of them."""
        first, last = index.start // shape[1], index.stop // shape[1]
        for key, (dtype, width) in rows.items():
            into = self.parameters if key == _VALUE else self.states.setdefault(name, {})
            place = name if key == _VALUE else key
            if place not in into:
                into[place] = self._room_for(torch.Size([shape[0], *width]), DTYPE_NAMES[dtype])
            rows_of(name, key, into[place][first:last])

    def _room_for(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if self.room is None or shape.numel() * dtype.itemsize < LARGE:
            return torch.empty(shape, dtype=dtype)
        return tensor_on_disk(shape, dtype, self.room)

    def states_of(self, run: TrainingRun, placement: RankPlacement) -> States:
        """State dicts of the model, the optimizer and the schedule, as one process has them."""
        parameters = dict(run.model.named_parameters())
        names = {param: name for name, param in parameters.items()}
        model = {
            key: self.parameters[names[value]]
            if isinstance(value, nn.Parameter)
            else self.buffers.get(key, value)
            for key, value in run.model.state_dict(keep_vars=True).items()
        }
        order = [name for names in placement.order for name in names]
        state = {i: self.states[name] for i, name in enumerate(order) if name in self.states}
        numbers, groups = count(), []
        for group, held in zip(run.optimizer.param_groups, placement.order, strict=True):
            settings = {key: value for key, value in group.items() if key != "params"}
            groups.append({**settings, "params": list(islice(numbers, len(held)))})
        control = {parameters[name]: entries for name, entries in self.entries.items()}
        return model, {"state": state, "param_groups": groups}, run.control.whole_state(control)

    def restore(self, run: TrainingRun, placement: RankPlacement) -> None:
        """Put the numbers back into the model and the optimizer of the leading rank."""
        parameters, optimizer = dict(run.model.named_parameters()), run.optimizer
        for name, tensor in self.parameters.items():
            parameters[name].grad = None
            parameters[name].data = tensor
        for name, buffer in run.model.named_buffers():
            if name in self.buffers:
                buffer.data = self.buffers[name]
        optimizer.state.clear()
        for group, names in zip(optimizer.param_groups, placement.order, strict=True):
            group["params"] = [parameters[name] for name in names]
            for name in names:
                if name in self.states:
                    optimizer.state[parameters[name]] = dict(self.states[name])


def gather(
    session: RankSession, placement: RankPlacement, run: TrainingRun, room: Path | None = None
) -> WholeModel | None:
    """Everything on rank 0, None elsewhere; all ranks call it together.

    Rows of shared tables travel in pieces, and with `room`, a folder of rank 0, into files: no rank
    has such a table in memory.
    """
    sizes = session.sizes
    # Rows of tables may be on all data ranks; all else is on the first of them.
    ranks = sizes.num_ranks // sizes.data
    if any(shard.over_data for shard in placement.shards):
        ranks = sizes.num_ranks
    if session.rank >= ranks:
        return None
    rows: dict[tuple[str, str], torch.Tensor] = {}
    mine = _mine(session, placement, run, rows)
    if not session.is_lead:
        send_tree(mine, 0, session.patient)
        for tensor in rows.values():
            send_pieces(tensor, 0, session.patient)
        return None
    result = WholeModel(room)
    result.add(mine, placement.shapes, lambda name, key, into: into.copy_(rows[name, key]))
    for rank in range(1, ranks):
        given = receive_tree(rank, session.patient)

        def received(name: str, key: str, into: torch.Tensor, sender: int = rank) -> None:
            receive_into(into, sender, session.patient)

        result.add(given, placement.shapes, received)
    return result


def _mine(
    session: RankSession,
    placement: RankPlacement,
    run: TrainingRun,
    rows: dict[tuple[str, str], torch.Tensor],
) -> dict[str, Any]:
    """What this rank gives: of entries that several hold, the first rank's.

    Rows of shared tables go into `rows`, in the order in which they are to be sent.
    """
    place, shards = session.place, {}
    for shard in placement.shards:
        if place.data and not shard.over_data:
            continue
        if (shard.share is None and place.shard) or (shard.positions is None and place.tensor):
            continue
        if place.expert and not shard.over_expert:
            continue
        if placement.holders.get(shard.name, [place.pipeline])[0] != place.pipeline:
            continue
        index, trained = shard.index(), shard.trained
        state = {
            key: _plain(value)
            for key, value in run.optimizer.state.get(trained, {}).items()
            if isinstance(value, torch.Tensor)
        }
        by_row: dict[str, torch.Tensor] = {}
        if shard.over_data:
            by_row = {_VALUE: _plain(trained)}
            by_row |= {k: t for k, t in state.items() if t.ndim and len(t) == len(trained)}
            rows |= {(shard.name, key): tensor.contiguous() for key, tensor in by_row.items()}
        shards[shard.name] = {
            "index": (index.start, index.stop) if isinstance(index, slice) else index,
            "value": None if by_row else _plain(trained),
            "rows": {k: (dtype_name(t.dtype), tuple(t.shape[1:])) for k, t in by_row.items()},
            "state": {key: value for key, value in state.items() if key not in by_row},
            "control": {k: _plain(t) for k, t in run.control.part_of(trained).items()},
        }
    buffers = {}
    if place.data == place.shard == place.tensor == place.expert == 0:
        mine = {id(b) for module in placement.modules for b in module.buffers()}
        # Masks are final, and the leading rank has all of them.
        buffers = {
            name: _plain(buffer)
            for name, buffer in run.model.named_buffers()
            if id(buffer) in mine and not name.endswith(_MASKS)
        }
    return {"shards": shards, "buffers": buffers}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu")


def _put(
    into: dict[str, torch.Tensor], name: str, part: torch.Tensor, index: Any, shape: torch.Size
) -> None:
    if name not in into:
        into[name] = part.new_empty(shape)
    into[name].view(-1)[index] = part.flatten()


class FixedFigures(NamedTuple):
    """What a cut of the model does not change; taken while this rank has all of it.

    Attributes:
        sparsity: fraction of zeros over the layers of the schedule.
        beside_bytes: of masks and other tensors that are not parameters.
    """

    sparsity: float
    beside_bytes: int

    @staticmethod
    def of(model: nn.Module, sparsity: float) -> "FixedFigures":
        """Of a model that is whole and whose masks are final."""
        use = measure(model)
        kinds = [*use.pruned.measured.items(), *use.rest.measured.items()]
        beside = (size for kind, size in kinds if kind not in ("weights", "gradients"))
        return FixedFigures(sparsity, sum(beside))


def whole_state_bytes(
    fixed: FixedFigures, shards: Iterable[ParameterShard], optimizer: torch.optim.Optimizer
) -> int:
    """Bytes of weights, gradients, optimizer state, masks and buffers; all ranks call it."""
    mine = 0.0
    for shard in shards:
        trained = shard.trained
        # A number that belongs to the whole parameter, such as a count of steps, is here in part.
        part = trained.numel() / max(1, shard.shape.numel())
        home = DenseHome.of(trained)
        if home is not None:
            # Its numbers are a dense weight, which no other rank has a part of.
            mine += home.dense.nbytes / shard.copies
        for tensor in (trained, trained.grad, *optimizer.state.get(trained, {}).values()):
            if isinstance(tensor, torch.Tensor) and tensor.is_sparse:
                mine += (tensor._indices().nbytes + tensor._values().nbytes) / shard.copies
            elif isinstance(tensor, torch.Tensor):
                follows = tensor.numel() == trained.numel()
                mine += tensor.nbytes * (1 if follows else part) / shard.copies
    total = torch.tensor([mine], dtype=torch.float64)
    dist.all_reduce(total)
    return fixed.beside_bytes + round(total.item())


def whole_not_finite(
    parameters: dict[str, nn.Parameter],
    copies: dict[nn.Parameter, int],
    shapes: dict[str, torch.Size],
) -> list[str]:
    """Gradients with NaN or Inf, counted over the whole parameters; all ranks call it.

    Args:
        parameters: what this rank trains, under the names of the whole model.
        copies: how many ranks hold the same entries.
        shapes: of the whole parameters.
    """
    bad = not_finite_gradients(parameters)
    mine = {name: number / copies[parameters[name]] for name, number in bad.items()}
    counts = Counter[str]()
    for found in gather_json(mine):
        counts.update(found)
    return [f"{name} ({round(n)} of {shapes[name].numel()})" for name, n in counts.items()]
