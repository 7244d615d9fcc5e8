# SPDX-License-Identifier: Apache-2.0
"""Layer-wise reconstruction: a slim model's sub-layers are brought back to those of the dense one.

Block by block, attention first: given the slim model's own inputs, the consumer of the units is
changed so that what flows on (residual plus output) comes closest to what flows in the teacher.
A change must not raise the error on the held-out quarter, else the sub-layer stays as it was.

The change is a ridge regression from sums over tokens: scales of units, or whole weights of their
consumer. Everything is solved for the deviation from what is there, so that regularisation changes
nothing when the data says nothing; its strength is relative to the mean diagonal, so that the scale
of the activations does not matter.
Legend: N tokens, K inputs, J = K + 1 with a constant input for the bias, D outputs, U units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.matrix_layers import matrix_of, set_matrix
from gossamer.nn.surgery.slimming import UnitGroup
from gossamer.pruning.calibration.flow import frozen
from gossamer.pruning.structured.replay import Keep, ModelCall, Seen, record_calls, watch
from gossamer.pruning.structured.units import Loss, find_units

RIDGE = 1e-3
ESCALATIONS = 3
MAX_SCALE = 10.0
REFIT_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass
class Sums:
    """What least squares needs of inputs x and targets y, float64: gram [J, J], cross [J, D]."""

    gram: torch.Tensor
    cross: torch.Tensor
    target: float = 0.0

    @classmethod
    def zeros(cls, inputs: int, outputs: int) -> "Sums":
        """Of no tokens."""
        gram = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        return cls(gram, torch.zeros(inputs + 1, outputs, dtype=torch.float64))

    def add(self, x_NK: torch.Tensor, y_ND: torch.Tensor) -> None:
        """Count some tokens in; products in their own precision, sums in float64."""
        x_NJ = torch.cat([x_NK, x_NK.new_ones(len(x_NK), 1)], dim=1)
        self.gram += x_NJ.T @ x_NJ
        self.cross += x_NJ.T @ y_ND
        self.target += float(y_ND.double().square().sum())

    def error(self, weight_DJ: torch.Tensor) -> float:
        """Summed squared error of x -> weight [x, 1] on these tokens, relative to that of 0."""
        quadratic = float(((weight_DJ @ self.gram) * weight_DJ).sum())
        linear = float((weight_DJ * self.cross.T).sum())
        return max(quadratic - 2 * linear + self.target, 0.0) / (self.target or 1.0)


def unit_scales(
    sums: Sums, weight_DJ: torch.Tensor, width: int, ridge: float = RIDGE
) -> tuple[torch.Tensor, str]:
    """Scales [U] of the units of `width` columns each that bring the output closest to the target.

    Returns:
        The scales and a note; all are 1 where even a stronger ridge leaves one outside
        [-10, 10].
    """
    weight_DK, bias_D = weight_DJ[:, :-1], weight_DJ[:, -1]
    units = weight_DK.shape[1] // width
    ones_U = torch.ones(units, dtype=torch.float64)
    if not units:
        return ones_U, ""
    inputs = weight_DK.shape[1]
    products_KK = (weight_DK.T @ weight_DK) * sums.gram[:inputs, :inputs]
    normal_UU = products_KK.reshape(units, width, units, width).sum((1, 3))
    cross_KD = sums.cross[:inputs] - torch.outer(sums.gram[:inputs, -1], bias_D)
    right_U = (cross_KD * weight_DK.T).sum(1).reshape(units, width).sum(1) - normal_UU @ ones_U
    for step in range(ESCALATIONS + 1):
        strength = ridge * 10**step
        scales_U = ones_U + solve_ridge(normal_UU, right_U[:, None], strength)[:, 0]
        if scales_U.abs().max() <= MAX_SCALE:
            return scales_U, "" if step == 0 else f"ridge raised to {strength:g}"
    return ones_U, f"a scale left [-{MAX_SCALE:g}, {MAX_SCALE:g}]; all scales stay 1"


def refitted(sums: Sums, weight_DJ: torch.Tensor, ridge: float, has_bias: bool) -> torch.Tensor:
    """The weight [D, J] nearest to `weight_DJ` in the ridge sense that fits the target best."""
    size = len(sums.gram) if has_bias else len(sums.gram) - 1
    gram = sums.gram[:size, :size]
    right = (sums.cross - sums.gram @ weight_DJ.T)[:size]
    result = weight_DJ.clone()
    result[:, :size] += solve_ridge(gram, right, ridge).T
    return result


def solve_ridge(normal: torch.Tensor, right: torch.Tensor, ridge: float) -> torch.Tensor:
    """(normal + ridge * mean diagonal * I)^-1 right by Cholesky in float64.

    A matrix that is not positive definite in float64 gets a stronger ridge, tenfold until it is.
    """
    size = len(normal)
    mean = float(normal.diagonal().mean()) if size else 0.0
    if mean <= 0 or not torch.isfinite(normal).all():
        return torch.zeros_like(right)
    eye = torch.eye(size, dtype=torch.float64)
    while True:
        factor, info = torch.linalg.cholesky_ex(normal + ridge * mean * eye)
        if int(info) == 0:
            return torch.cholesky_solve(right, factor)
        ridge = max(ridge * 10, 1e-14)


Method = Literal["scales", "weights"]
HELD_OUT = 4


@dataclass(frozen=True)
class SubLayerFit:
    """One sub-layer: relative squared errors on the held-out quarter, and what was done."""

    name: str
    error_before: float
    error_after: float
    note: str = ""


def reconstruct(
    student: nn.Module,
    teacher: nn.Module,
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
        teacher: the model to come back to, of the same family and depth; not changed.
        batches: calibration data.
        loss: how a batch is run; its value is not used.
        method: "scales": one factor per unit. "weights": the consumer's whole weight and bias.
        keep: tells padding from tokens, see `replay.Keep`.
        ridge: strength relative to the mean diagonal; default 1e-3 for scales, for weights the
            best of several on the held-out quarter.
    """
    if method not in ("scales", "weights"):
        raise InputError(f"method: expected 'scales' or 'weights', got {method!r}.")
    groups, teacher_groups = find_units(student), find_units(teacher)
    if [g.family for g in groups] != [g.family for g in teacher_groups]:
        raise InputError("teacher: its blocks are not those of the student.")
    fits: list[SubLayerFit] = []
    with frozen(student), frozen(teacher), torch.no_grad():
        blocks = [group.block for group in teacher_groups[::2]]
        theirs = record_calls(teacher, blocks, batches, loss, keep)
        if not theirs:
            raise InputError("batches: there is none; reconstruction needs calibration data.")
        ours = [replace(call) for call in theirs]
        for number in range(len(blocks)):
            pair = slice(2 * number, 2 * number + 2)
            sums = [_teach(call, number, teacher_groups[pair]) for call in theirs]
            for group, targets in zip(groups[pair], zip(*sums, strict=True), strict=True):
                rows = (_student_rows(call, number, groups[pair], group) for call in ours)
                fits.append(_fit(group, rows, targets, method, ridge))
            for call in ours:
                call.hidden = call.run(groups[2 * number].block, number)
    return fits


def _teach(
    call: ModelCall, number: int, groups: Sequence[UnitGroup]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What flows after attention and after the feed-forward part; the call moves on one block."""
    seen, after = _watch(call, number, groups)
    after_attention = call.hidden + seen["heads"][1].view_as(call.hidden)
    after_ffn = _ffn_residual(call, groups[1], seen) + seen["filters"][1].view_as(call.hidden)
    if after is None:
        raise InputError(f"{groups[0].block_name}: returned nothing.")
    call.hidden = after
    return call.rows(after_attention), call.rows(after_ffn)


def _fit(
    group: UnitGroup,
    rows: Iterable[tuple[torch.Tensor, torch.Tensor]],
    targets: Sequence[torch.Tensor],
    method: Method,
    ridge: float | None,
) -> SubLayerFit:
    matrix = matrix_of(group.consumer)
    outputs, inputs = matrix.shape
    fit, held = (Sums.zeros(inputs, outputs) for _ in range(2))
    for place, ((x_NK, residual), target) in enumerate(zip(rows, targets, strict=True)):
        y_ND = target - residual
        if len(targets) >= HELD_OUT:
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
    best_DJ = min(candidates, key=held.error)
    after = held.error(best_DJ)
    # Not <= : NaN must not pass.
    if not after < before:
        return SubLayerFit(group.name, before, before, note or "left as it was")
    new_DJ = best_DJ.to(matrix)
    set_matrix(group.consumer, new_DJ[:, :-1])
    if bias is not None:
        bias.data.copy_(new_DJ[:, -1])
    return SubLayerFit(group.name, before, after, note)


def _student_rows(
    call: ModelCall, number: int, groups: Sequence[UnitGroup], group: UnitGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of the consumer and the residual its output is added to."""
    seen, _ = _watch(call, number, groups, group.kind)
    residual = call.hidden if group.kind == "heads" else _ffn_residual(call, group, seen)
    return call.rows(seen[group.kind][0]), call.rows(residual)


def _watch(
    call: ModelCall, number: int, groups: Sequence[UnitGroup], stop_at: str = ""
) -> tuple[Seen, torch.Tensor | None]:
    """`watch` of the two consumers and of what expands to the filters."""
    heads, filters = groups
    wanted = {"heads": heads.consumer, "filters": filters.consumer}
    wanted["expansion"] = filters.producers[0]
    return watch(call, heads.block, number, wanted, stop_at)


def _ffn_residual(call: ModelCall, group: UnitGroup, seen: Seen) -> torch.Tensor:
    """What the feed-forward output is added to: see `BlockParts.norm_first`."""
    first = group.family.norm_first
    if isinstance(first, str):
        first = bool(getattr(group.block, first))
    if first:
        return call.hidden + seen["heads"][1].view_as(call.hidden)
    return seen["expansion"][0].view_as(call.hidden)
