# SPDX-License-Identifier: Apache-2.0
"""Layer-wise reconstruction: a slim model's sub-layers are brought back to those of the dense one.

Block by block, attention first: given the slim model's own inputs, the consumer of the units is
changed so that what flows on (residual plus output) comes closest to what flows in the teacher.
A change must not raise the error on the held-out quarter, else the sub-layer stays as it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.slimming import UnitGroup, matrix_of, set_matrix
from gossamer.pruning.calibration import frozen
from gossamer.pruning.structured.gradients import Loss
from gossamer.pruning.structured.least_squares import (
    REFIT_RIDGES,
    RIDGE,
    Sums,
    refitted,
    unit_scales,
)
from gossamer.pruning.structured.replay import Keep, ModelCall, record_calls, watch

Method = Literal["scales", "weights"]
HELD_OUT = 4


@dataclass(frozen=True)
class SubLayerFit:
    """One sub-layer: relative squared errors on the held-out quarter, and what was done."""

    name: str
    error_before: float
    error_after: float
    note: str = ""


def reconstruct(  # noqa: PLR0913 (two models with their units, and how to run them)
    student: nn.Module,
    groups: Sequence[UnitGroup],
    teacher: nn.Module,
    teacher_groups: Sequence[UnitGroup],
    batches: Iterable[Any],
    loss: Loss,
    *,
    method: Method,
    keep: Keep | None = None,
    ridge: float | None = None,
) -> list[SubLayerFit]:
    """Fit every consumer of the slim `student` in place.

    Args:
        student: a slim model.
        groups: its units.
        teacher: the model to come back to, of the same family and depth; not changed.
        teacher_groups: its units.
        batches: calibration data.
        loss: how a batch is run; its value is not used.
        method: "scales": one factor per unit. "weights": the consumer's whole weight and bias.
        keep: tells padding from tokens, see `replay.Keep`.
        ridge: strength relative to the mean diagonal; default 1e-3 for scales, for weights the
            best of several on the held-out quarter.
    """
    if method not in ("scales", "weights"):
        raise InputError(f"method: expected 'scales' or 'weights', got {method!r}.")
    if [g.family for g in groups] != [g.family for g in teacher_groups]:
        raise InputError("teacher: its blocks are not those of the student.")
    fits: list[SubLayerFit] = []
    with frozen(student), frozen(teacher), torch.no_grad():
        blocks = [group.block for group in teacher_groups[::2]]
        theirs = record_calls(teacher, blocks, batches, loss, keep)
        if not theirs:
            raise InputError("batches: there is none; reconstruction needs calibration data.")
        ours = [ModelCall(call.hidden, call.rest, call.keep) for call in theirs]
        for number in range(len(blocks)):
            pair = slice(2 * number, 2 * number + 2)
            sums = [_teach(call, number, teacher_groups[pair]) for call in theirs]
            for index, group in enumerate(groups[pair]):
                targets = [attention_and_ffn[index] for attention_and_ffn in sums]
                fits.append(_fit(group, number, ours, targets, method, ridge))
            for call in ours:
                call.hidden = call.run(groups[2 * number].block, number)
    return fits


def _teach(
    call: ModelCall, number: int, groups: Sequence[UnitGroup]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What flows after attention and after the feed-forward part; the call moves on one block."""
    block = groups[0].block
    seen, after = watch(call, block, number, _layers(groups))
    after_attention = call.hidden + seen["heads"][1].view_as(call.hidden)
    after_ffn = _ffn_residual(call, groups[1], seen) + seen["filters"][1].view_as(call.hidden)
    if after is None:
        raise InputError(f"{groups[0].block_name}: returned nothing.")
    call.hidden = after
    return call.rows(after_attention), call.rows(after_ffn)


def _fit(
    group: UnitGroup,
    number: int,
    calls: list[ModelCall],
    targets: list[torch.Tensor],
    method: Method,
    ridge: float | None,
) -> SubLayerFit:
    matrix = matrix_of(group.consumer)
    device, (outputs, inputs) = matrix.device, matrix.shape
    fit, held = (Sums.zeros(inputs, outputs) for _ in range(2))
    for place, (call, target) in enumerate(zip(calls, targets, strict=True)):
        x_NK, residual = _student_rows(call, number, group)
        y_ND = target - residual
        if len(calls) >= HELD_OUT:
            (held if place % HELD_OUT == HELD_OUT - 1 else fit).add(x_NK.cpu(), y_ND.cpu())
            continue
        # Too few calls to set some aside: every fourth token instead.
        apart = torch.arange(len(x_NK), device=x_NK.device) % HELD_OUT == HELD_OUT - 1
        fit.add(x_NK[~apart].cpu(), y_ND[~apart].cpu())
        held.add(x_NK[apart].cpu(), y_ND[apart].cpu())
    bias = group.consumer._parameters.get("bias")
    bias_D = torch.zeros(outputs) if bias is None else bias.detach().cpu()
    old_DJ = torch.cat([matrix.detach().cpu(), bias_D[:, None]], dim=1).double()
    before = held.error(old_DJ)
    note = ""
    if method == "scales":
        scales_U, note = unit_scales(fit, old_DJ, group.width, RIDGE if ridge is None else ridge)
        new_DJ = old_DJ.clone()
        new_DJ[:, :-1] *= scales_U.repeat_interleave(group.width)
        candidates = [new_DJ]
    else:
        ridges = REFIT_RIDGES if ridge is None else (ridge,)
        candidates = [refitted(fit, old_DJ, strength, bias is not None) for strength in ridges]
    errors = [held.error(candidate) for candidate in candidates]
    best = min(range(len(errors)), key=errors.__getitem__)
    # Not <= : NaN must not pass.
    if not errors[best] < before:
        return SubLayerFit(group.name, before, before, note or "left as it was")
    new_DJ = candidates[best].to(device, matrix.dtype)
    set_matrix(group.consumer, new_DJ[:, :-1])
    if bias is not None:
        bias.data.copy_(new_DJ[:, -1])
    return SubLayerFit(group.name, before, errors[best], note)


def _student_rows(
    call: ModelCall, number: int, group: UnitGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of the consumer and the residual its output is added to."""
    heads = group.kind == "heads"
    own: dict[str, nn.Module]
    own = {group.kind: group.consumer} if heads else _layers([group], with_attention=True)
    seen, _ = watch(call, group.block, number, own, stop_at=group.kind)
    residual = call.hidden if heads else _ffn_residual(call, group, seen)
    return call.rows(seen[group.kind][0]), call.rows(residual)


def _layers(groups: Sequence[UnitGroup], with_attention: bool = False) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {group.kind: group.consumer for group in groups}
    ffn = groups[-1]
    layers["expansion"] = ffn.producers[0]
    if with_attention:
        layers["heads"] = ffn.block.get_submodule(ffn.family.output)
    return layers


def _ffn_residual(
    call: ModelCall, group: UnitGroup, seen: dict[str, tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """What the feed-forward output is added to: see `BlockParts.norm_first`."""
    first = group.family.norm_first
    if isinstance(first, str):
        first = bool(getattr(group.block, first))
    if first:
        return call.hidden + seen["heads"][1].view_as(call.hidden)
    return seen["expansion"][0].view_as(call.hidden)
