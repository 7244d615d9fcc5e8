# SPDX-License-Identifier: Apache-2.0
"""The way back: pieces of all ranks become the whole model and optimizer on the leading rank.

What comes out is what a single process has, so checkpoints and artifacts do not depend on the grid.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.training.distributed.placement.layout import Layout
from gossamer.training.distributed.placement.pieces import Piece
from gossamer.training.distributed.processes.messages import receive_tensors, send_tensors
from gossamer.training.distributed.processes.session import Session

if TYPE_CHECKING:
    from gossamer.training.loop.loop import Loop

_MASKS = "mask_bits"


@dataclass
class Gathered:
    """Tensors of the whole model, on the leading rank.

    Attributes:
        parameters: by name.
        states: optimizer state by the name of its parameter.
        buffers: by name; those that training changes.
        entries: what the schedule knows of single entries, by the name of their parameter; one dict
            per rank that holds some.
    """

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    entries: dict[str, list[dict[str, torch.Tensor]]] = field(default_factory=dict)


def gather(session: Session, layout: Layout, loop: "Loop") -> Gathered | None:
    """Everything on rank 0, None elsewhere; all ranks call it together."""
    sizes, place = session.sizes, session.place
    senders = range(1, sizes.num_ranks // sizes.data)
    if place.data == 0 and not session.is_lead:
        send_tensors(dict(_mine(session, layout, loop)), 0, session.patient)
    if not session.is_lead:
        return None
    shapes, result = layout.shapes, Gathered()
    _add(result, dict(_mine(session, layout, loop)), shapes)
    for rank in senders:
        _add(result, receive_tensors(rank, session.patient), shapes)
    return result


def whole_model_state(model: nn.Module, gathered: Gathered) -> dict[str, Any]:
    """`model.state_dict()` with the numbers that ranks hold."""
    names = {id(param): name for name, param in model.named_parameters()}
    found: dict[str, Any] = {}
    for key, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, nn.Parameter):
            found[key] = gathered.parameters[names[id(value)]]
        else:
            found[key] = gathered.buffers.get(key, value)
    return found


def whole_optimizer_state(
    optimizer: torch.optim.Optimizer, layout: Layout, gathered: Gathered
) -> dict[str, Any]:
    """`optimizer.state_dict()` of the whole optimizer."""
    index, groups, state = 0, [], {}
    for group, names in zip(optimizer.param_groups, layout.order, strict=True):
        settings = {key: value for key, value in group.items() if key != "params"}
        groups.append({**settings, "params": list(range(index, index + len(names)))})
        for name in names:
            if name in gathered.states:
                state[index] = gathered.states[name]
            index += 1
    return {"state": state, "param_groups": groups}


def whole_control_state(loop: "Loop", gathered: Gathered) -> dict[str, Any]:
    """The schedule's state, with the entries that ranks hold."""
    parameters = dict(loop.model.named_parameters())
    return loop.control.whole_state({parameters[n]: e for n, e in gathered.entries.items()})


def make_whole(
    model: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout, gathered: Gathered
) -> None:
    """Put the numbers back into the model and the optimizer of the leading rank."""
    parameters = dict(model.named_parameters())
    for name, tensor in gathered.parameters.items():
        parameters[name].grad = None
        parameters[name].data = tensor
    for name, buffer in model.named_buffers():
        if name in gathered.buffers:
            buffer.data = gathered.buffers[name]
    optimizer.state.clear()
    for group, names in zip(optimizer.param_groups, layout.order, strict=True):
        group["params"] = [parameters[name] for name in names]
        for name in names:
            if name in gathered.states:
                optimizer.state[parameters[name]] = dict(gathered.states[name])


def _mine(session: Session, layout: Layout, loop: "Loop") -> Iterator[tuple[str, torch.Tensor]]:
    """What this rank gives: of entries that several hold, the first rank's."""
    place, optimizer = session.place, loop.optimizer
    for piece in layout.pieces:
        if not _is_giver(piece, layout, place):
            continue
        head = f"p/{piece.name}/"
        index = piece.index()
        if isinstance(index, slice):
            yield f"{head}range", torch.tensor([index.start, index.stop])
        else:
            yield f"{head}index", index
        yield f"{head}value", _plain(piece.trained)
        for key, value in optimizer.state.get(piece.trained, {}).items():
            if isinstance(value, torch.Tensor):
                follows = value.ndim > 0 and value.shape == piece.trained.shape
                yield f"{head}{'entries' if follows else 'state'}/{key}", _plain(value)
        for key, value in loop.control.part_of(piece.trained).items():
            yield f"c/{piece.name}/{key}", _plain(value)
    if place.shard == place.tensor == 0:
        mine = {id(b) for module in layout.modules for b in module.buffers()}
        for name, buffer in loop.model.named_buffers():
            # Masks are final, and the leading rank has all of them.
            if id(buffer) in mine and not name.endswith(_MASKS):
                yield f"b/{name}", _plain(buffer)


def _is_giver(piece: Piece, layout: Layout, place: Any) -> bool:
    if (piece.share is None and place.shard) or (piece.positions is None and place.tensor):
        return False
    return bool(layout.holders.get(piece.name, [place.pipeline])[0] == place.pipeline)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu")


def _add(result: Gathered, tensors: dict[str, torch.Tensor], shapes: dict[str, torch.Size]) -> None:
    for name, tensor in tensors.items():
        if name.startswith("b/"):
            result.buffers[name[2:]] = tensor
    for name in dict.fromkeys(key.split("/")[1] for key in tensors if key.startswith("c/")):
        head = f"c/{name}/"
        found = {key[len(head) :]: t for key, t in tensors.items() if key.startswith(head)}
        result.entries.setdefault(name, []).append(found)
    for name in dict.fromkeys(key.split("/")[1] for key in tensors if key.startswith("p/")):
        head = f"p/{name}/"
        found = {key[len(head) :]: t for key, t in tensors.items() if key.startswith(head)}
        bounds = found.pop("range", None)
        index: Any = found.pop("index", None)
        if bounds is not None:
            index = slice(*bounds.tolist())
        _put(result.parameters, name, found.pop("value"), index, shapes[name])
        state = result.states.setdefault(name, {}) if found else {}
        for key, tensor in found.items():
            kind, _, state_key = key.partition("/")
            if kind == "entries":
                _put(state, state_key, tensor, index, shapes[name])
            else:
                state[state_key] = tensor


def _put(
    into: dict[str, torch.Tensor], name: str, part: torch.Tensor, index: Any, shape: torch.Size
) -> None:
    if name not in into:
        into[name] = part.new_empty(shape)
    into[name].view(-1)[index] = part.flatten()
