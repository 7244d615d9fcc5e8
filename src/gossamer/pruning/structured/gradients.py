# SPDX-License-Identifier: Apache-2.0
"""How much the loss changes with every unit: gradients of mask variables at 1.

Legend: S samples or batches, U units of one group.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.slimming import UnitGroup
from gossamer.pruning.calibration import frozen, hooked

Loss = Callable[[nn.Module, Any], torch.Tensor]
Fisher = Literal["batch", "sample"]


@dataclass
class _Variables:
    """Mask variables of one group that come into being with the calls of its consumer."""

    group: UnitGroup
    fisher: Fisher
    rows: int = 0
    variables: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)

    def note_rows(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The block is entered: its first dimension is the samples."""
        self.rows = len(args[0] if args else kwargs["hidden_states"])

    def scale(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Multiply the input of the consumer by new variables of value one."""
        x = args[0]
        rows = self.rows if self.fisher == "sample" else 1
        variable_SU = x.new_ones(rows, self.group.count).requires_grad_()
        self.variables.append(variable_SU)
        wide_S1K = variable_SU.repeat_interleave(self.group.width, dim=1).unsqueeze(1)
        # Some models flatten samples and tokens before the feed-forward part.
        return ((x.reshape(rows, -1, x.shape[-1]) * wide_S1K).view_as(x), *args[1:])

    def take(self) -> None:
        """Keep the gradients [S, U] of the batch that was just run.

        Batch: of all calls together. Sample: of every row of every call, for a loss that is a sum
        over rows; the loss being a mean is made good by the number of rows.
        """
        found = [v.grad for v in self.variables if v.grad is not None]
        self.variables.clear()
        if not found:
            raise InputError(
                f"{self.group.name}: the loss does not depend on these units; the loss must run the"
                " model it is given, with gradients enabled."
            )
        if self.fisher == "batch":
            self.gradients.append(torch.stack(found).sum(0))
        else:
            gradient_SU = torch.cat(found)
            self.gradients.append(gradient_SU * len(gradient_SU))


def mask_gradients(
    model: nn.Module,
    groups: Sequence[UnitGroup],
    batches: Iterable[Any],
    loss: Loss,
    fisher: Fisher = "batch",
) -> list[torch.Tensor]:
    """Gradients [S, U] of the loss for every group, at mask value 1.

    Weights get no gradients; mode and `requires_grad` of everything are as before afterwards.

    Args:
        model: run in eval mode.
        groups: from `find_units(model)`.
        batches: whatever `loss` understands.
        loss: `loss(model, batch)`, a scalar: the mean over the batch.
        fisher: "batch": one gradient per batch, as in the published method. "sample": one per row
            of the model's input, for losses that are means of per-row terms; where several rows
            form one sample (pairs of sentences), each row counts by itself.
    """
    if fisher not in ("batch", "sample"):
        raise InputError(f"fisher: expected 'batch' or 'sample', got {fisher!r}.")
    holders = [_Variables(group, fisher) for group in groups if group.count]
    if not holders:
        raise InputError("model: no unit is left in any block; there is nothing to prune.")
    handles = [
        holder.group.consumer.register_forward_pre_hook(holder.scale) for holder in holders
    ] + [
        holder.group.block.register_forward_pre_hook(holder.note_rows, with_kwargs=True)
        for holder in holders
    ]
    with hooked(handles), frozen(model), torch.enable_grad():
        for batch in batches:
            value = loss(model, batch)
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                raise InputError("loss: must return a scalar tensor that depends on the model.")
            if not value.requires_grad:
                raise InputError(
                    "loss: its value has no gradient; it must call the model it is given, without"
                    " no_grad."
                )
            if not torch.isfinite(value).all():
                raise InputError(
                    f"loss: is {float(value.detach())} on a calibration batch; check data and"
                    " weights."
                )
            value.backward()  # type: ignore[no-untyped-call]
            for holder in holders:
                holder.take()
    if not holders[0].gradients:
        raise InputError("batches: there is none; gradients need calibration data.")
    found = {holder.group.name: torch.cat(holder.gradients) for holder in holders}
    nothing = torch.zeros(len(found[holders[0].group.name]), 0)
    return [found.get(group.name, nothing) for group in groups]


def fisher_scores(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Diagonal Fisher information of every unit, float64 [U]: the mean squared gradient."""
    return [gradient_SU.double().square().mean(0) for gradient_SU in gradients]
