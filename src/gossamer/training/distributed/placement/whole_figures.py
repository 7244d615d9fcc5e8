# SPDX-License-Identifier: Apache-2.0
"""Figures of the whole model, told by ranks that each hold a part of it.

A rank's own layers say nothing about the model: their weights and masks may be elsewhere. What the
cut does not change (zeros, buffers) is noted before it, when every rank has the whole model. What
training changes is added up over the ranks, and entries that several ranks hold count once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from gossamer.training.distributed.placement.pieces import Piece
from gossamer.training.distributed.processes.messages import gather_json
from gossamer.training.loop.finite import describe, not_finite_gradients
from gossamer.training.memory.held import measure


@dataclass(frozen=True)
class FixedFigures:
    """What a cut of the model does not change; taken while this rank has all of it.

    Attributes:
        sparsity: fraction of zeros over the layers of the schedule.
        beside_bytes: of masks and other tensors that are no parameters.
    """

    sparsity: float
    beside_bytes: int

    @staticmethod
    def of(model: nn.Module, sparsity: float) -> "FixedFigures":
        """Of a model that is whole and whose masks are final."""
        use = measure(model)
        kinds = [*use.pruned.measured.items(), *use.rest.measured.items()]
        beside = sum(size for kind, size in kinds if kind not in ("weights", "gradients"))
        return FixedFigures(sparsity, beside)


def whole_state_bytes(
    fixed: FixedFigures, pieces: Iterable[Piece], optimizer: torch.optim.Optimizer
) -> int:
    """Bytes of weights, gradients, optimizer state, masks and buffers; all ranks call it."""
    mine = 0.0
    for piece in pieces:
        trained = piece.trained
        # A number that belongs to the whole parameter, such as a count of steps, is here in part.
        part = trained.numel() / max(1, piece.shape.numel())
        for tensor in (trained, trained.grad, *optimizer.state.get(trained, {}).values()):
            if isinstance(tensor, torch.Tensor):
                follows = tensor.numel() == trained.numel()
                size = tensor.numel() * tensor.element_size()
                mine += (size if follows else part * size) / piece.copies
    total = torch.tensor([mine], dtype=torch.float64)
    dist.all_reduce(total)
    return fixed.beside_bytes + round(total.item())


def whole_not_finite(
    parameters: Iterable[tuple[str, nn.Parameter]],
    copies: dict[nn.Parameter, int],
    shapes: dict[str, torch.Size],
) -> list[str]:
    """Gradients with NaN or Inf, counted over the whole parameters; all ranks call it.

    Args:
        parameters: what this rank trains, under the names of the whole model.
        copies: how many ranks hold the same entries.
        shapes: of the whole parameters.
    """
    held = dict(parameters)
    mine = [
        (name, bad / copies[held[name]])
        for name, (bad, _) in not_finite_gradients(held.items()).items()
    ]
    counts: dict[str, float] = {}
    for found in gather_json(mine):
        for name, bad in found:
            counts[name] = counts.get(name, 0.0) + bad
    return [describe(name, round(bad), shapes[name].numel()) for name, bad in counts.items()]
