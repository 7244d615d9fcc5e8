# SPDX-License-Identifier: Apache-2.0
"""Which heads and filters a model has, what each is worth, and a smaller model with some of them.

What cannot be cut is a typed error that says why. Before they are cut, one value per unit may
multiply its columns: it acts on the input of the consumer (output projection, down matrix), so that
one hook serves every family. Gradients of such mask variables at 1 say how much the loss changes
with every unit.

Legend: S samples or batches, U units of one group.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery.matrix_layers import is_matrix_layer
from gossamer.nn.surgery.slimming import UnitGroup, cut_units, find_groups
from gossamer.pruning.calibration.flow import frozen, hooked
from gossamer.pruning.gradients import GradientPasses

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def find_units(model: nn.Module) -> list[UnitGroup]:
    """Groups of units in model order: heads, then filters, of every block.

    Raises:
        TargetError: unknown architecture, layers that are not plain, shared or computed weights.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        family = block_of(module)
        if family is None:
            continue
        if family.whole:
            raise TargetError(
                f"{name}: heads and filters cannot be cut out of a {type(module).__name__}:"
                f" {family.whole}. Prune its weights instead."
            )
        if module in names:
            raise TargetError(
                f"{name}: is the same block as {names[module]}. A block that is used twice has"
                " one set of units for two places, which is not supported."
            )
        names[module] = name
        _check_layers(name, module, family.linears)
    if not names:
        raise TargetError(_unknown(model))
    refuse_patterns(model, "heads that are left would get the pattern of others", by_head=True)
    groups = find_groups(model)
    _check_sharing(model, groups)
    return groups


def slim(model: nn.Module, kept: Sequence[Sequence[int]]) -> nn.Module:
    """Cut all units but `kept` out of `model`, in place, and return it.

    A sub-layer with nothing left still adds its output bias. The result equals the model whose
    other units are masked (`scaled_units`).

    Args:
        model: of a family of `find_units`.
        kept: per group of `find_units(model)`, ascending unit numbers.
    """
    groups = find_units(model)
    if len(kept) != len(groups):
        raise InputError(f"kept: one list per group is due, {len(groups)}, got {len(kept)}.")
    with torch.no_grad():
        for group, units in zip(groups, kept, strict=True):
            cut_units(group, units)
    return model


def scaled_units(
    groups: Sequence[UnitGroup], factors: Sequence[torch.Tensor]
) -> AbstractContextManager[None]:
    """Inside, every group's units are multiplied by its factors [units]."""

    def scale(group: UnitGroup, factor: torch.Tensor) -> Any:
        wide = factor.repeat_interleave(group.width)
        return lambda module, args: (args[0] * wide, *args[1:])

    return hooked(
        [
            group.consumer.register_forward_pre_hook(scale(group, factor))
            for group, factor in zip(groups, factors, strict=True)
        ]
    )


def mask_factors(groups: Sequence[UnitGroup], kept: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One for kept units, zero for the others."""
    factors = []
    for group, units in zip(groups, kept, strict=True):
        factor = next(group.consumer.parameters()).new_zeros(group.count)
        factor[list(units)] = 1
        factors.append(factor)
    return factors


def _check_layers(block_name: str, block: nn.Module, linears: Iterable[str]) -> None:
    for part in linears:
        try:
            layer = block.get_submodule(part)
        except AttributeError:
            continue  # an attention without heads has no projections any more
        where = f"{block_name}.{part}"
        # What a hook computes before every forward is an ordinary attribute.
        if hasattr(layer, "parametrizations") or "weight" in layer.__dict__:
            raise TargetError(
                f"{where}: its weight is computed (weight_norm, parametrization or"
                " torch.nn.utils.prune). Make it permanent before units are cut out."
            )
        if not is_matrix_layer(layer):
            raise TargetError(
                f"{where}: is a {type(layer).__name__}; units can be cut out of torch.nn.Linear and"
                " transformers' Conv1D only. Make masked or compact layers dense first (to_dense)."
            )


def _check_sharing(model: nn.Module, groups: list[UnitGroup]) -> None:
    owners: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(parameter, []).append(name)
    for group in groups:
        for layer in (*group.producers, group.consumer):
            for parameter in layer.parameters(recurse=False):
                if len(owners[parameter]) > 1:
                    raise TargetError(
                        f"{group.name}: {' and '.join(owners[parameter][:3])} are one tensor;"
                        " cutting one would cut the other. Untie them first."
                    )


def _unknown(model: nn.Module) -> str:
    supported = ", ".join(answers("block"))
    fused = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, _FUSED)
    ]
    if fused:
        return (
            f"{fused[0]}: keeps q, k and v in one Parameter (in_proj_weight) and reads its layers'"
            f" weights directly, so no head can be cut out. Supported blocks: {supported}."
        )
    kinds = sorted({type(module).__name__ for module in model.modules()})
    return (
        "no transformer block of a known family was found; the model holds"
        f" {', '.join(kinds[:12])}."
        f" Supported blocks: {supported}."
    )


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
    passes = GradientPasses(model, list(batches), loss)
    handles = [
        holder.group.consumer.register_forward_pre_hook(holder.scale) for holder in holders
    ] + [
        holder.group.block.register_forward_pre_hook(holder.note_rows, with_kwargs=True)
        for holder in holders
    ]
    with hooked(handles), frozen(model), torch.enable_grad():
        for number, batch in enumerate(passes.batches):
            passes.value(number, batch).backward()  # type: ignore[no-untyped-call]
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
