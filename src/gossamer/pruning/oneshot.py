# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning: a plan with a mask for every target, then masked layers.

Everything that can fail is in the plan, which changes nothing.
"""

import math
import numbers
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.forms import mask_in
from gossamer.nn.layer_kinds import title_of
from gossamer.nn.layer_weights import num_parts, weight_of
from gossamer.nn.layers.experts import check_tiles
from gossamer.nn.layers.parts import check_float_weight
from gossamer.nn.surgery import disable_fast_paths, unchanged_on_error
from gossamer.patterns import Pattern, parse_pattern
from gossamer.patterns.selection import kept_count
from gossamer.pruning.budgets import BUDGETS, Budget, budget_layers
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.calibration.statistics import collect_inputs
from gossamer.pruning.legal_counts import check_inside, keep_highest, nearest_density
from gossamer.pruning.methods import LayerContext, Scorer, resolve_scorer
from gossamer.pruning.targets import Rules, Target, find_targets

__all__ = [
    "LayerResult",
    "PruningPlan",
    "apply_plan",
    "check_layer",
    "plan_oneshot",
    "tensors_of",
]


@dataclass(frozen=True)
class PruningPlan:
    """Masks to apply, one per target."""

    pattern: Pattern
    targets: list[Target]
    masks: list[torch.Tensor]


def tensors_of(targets: Iterable[Target]) -> list[torch.Tensor]:
    """The weights of `targets`, and the masks of those that have one."""
    found: list[torch.Tensor] = []
    for target in targets:
        found.append(target.weight)
        if target.mask is not None:
            found += [target.module.mask_bits, target.mask]
    return found


def plan_oneshot(
    model: nn.Module,
    *,
    sparsity: float | None = None,
    pattern: str | Pattern = "unstructured",
    scorer: str | Scorer = "magnitude",
    budget: str = "uniform",
    targets: Rules = None,
    ignore: Rules = None,
    data: Iterable[Any] | None = None,
) -> PruningPlan:
    """Score, share the budget, project onto the pattern; `model` stays as it is.

    A layer that is masked already is pruned further within its mask.

    Args:
        model: any module.
        sparsity: fraction of zeros in [0, 1); leave it out for patterns that fix it.
        pattern: which zeros are legal.
        scorer: what says which weights matter.
        budget: how the target is shared among layers.
        targets: which layers, see `find_targets`.
        ignore: which layers not.
        data: batches, for scorers that need activations.
    """
    rule = pattern if isinstance(pattern, Pattern) else parse_pattern(pattern)
    density = rule.resolve_density(None if sparsity is None else 1.0 - check_sparsity(sparsity))
    rank, share = resolve_scorer(scorer), _budget(budget, rule)
    found = find_targets(model, targets, ignore)
    for target in found:
        check_layer(target, rule)
    batches: list[Batch] = []
    if share.needs_data:
        batches = as_batches(data, f"budget {share.name!r}")
        # An iterator is used up now; the scorer gets what came out of it.
        data = [batch.arguments for batch in batches]
    if rank.needs == "gradients":
        raise InputError(
            f"scorer {rank.name!r} needs gradients, which one-shot pruning does not collect."
            " Use a scorer that needs none, such as 'magnitude'."
        )
    inputs = collect_inputs(model, found, data, rank.name) if rank.needs == "activations" else {}
    scores: Iterable[torch.Tensor] = _scores(found, rank, inputs)
    layers = budget_layers(model, batches, found, share, density, rule)
    if share.needs == "scores":
        scores = list(scores)
        layers = [replace(layer, scores=each) for layer, each in zip(layers, scores, strict=True)]
    masks = [_mask(*each, rule) for each in zip(found, scores, share(layers, density), strict=True)]
    return PruningPlan(rule, found, masks)


def check_sparsity(sparsity: Any) -> float:
    """The sparsity as a float in [0, 1); InputError otherwise, NaN and percentages included."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, numbers.Real):
        raise InputError(f"sparsity: expected a number in [0, 1), got {sparsity!r}.")
    value = float(sparsity)
    if 0.0 <= value < 1.0:
        return value
    hint = ""
    if 1.0 < value < 100.0:
        hint = f" Write {value / 100:g} for {value:g} %."
    elif value == 1.0:
        hint = " At 1.0 nothing would be left."
    raise InputError(f"sparsity: must be in [0, 1), got {sparsity}.{hint}")


def _budget(name: str, pattern: Pattern) -> Budget:
    if not isinstance(name, str):
        raise InputError(f"budget: expected a name, got {type(name).__name__}.")
    budget = BUDGETS.get(name)
    if pattern.fixed_density is not None and name != "uniform":
        raise InputError(
            f"budget {name!r} gives each layer its own sparsity, but pattern {pattern} fixes it at"
            f" {1 - pattern.fixed_density:g} everywhere. Use budget='uniform', or a pattern"
            " without a fixed density such as 'unstructured'."
        )
    return budget


def check_layer(target: Target, pattern: Pattern) -> None:
    """Raise unless the weight is finite enough to rank and fits the pattern."""
    where, weight = f"{target.name}.weight", target.weight
    check_float_weight(weight, where)
    num_nan = int(weight.detach().isnan().sum())
    if num_nan:
        raise InputError(
            f"{where}: {num_nan} of {weight.numel()} weights are NaN and cannot be ranked."
            " The model is damaged; load it again, or add the layer to ignore=[...]."
        )
    pattern.check_shape((weight.shape[0], weight.shape[1:].numel()), where)
    parts = num_parts(target.module)
    check_tiles(pattern, weight.shape[0] // parts, parts, where)


def _scores(
    targets: list[Target], scorer: Scorer, inputs: dict[str, torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Of one target after the other."""
    for target in targets:
        weight_RK = weight_of(target.module).flatten(1)
        scores = scorer(LayerContext(target.name, weight_RK, inputs.get(target.name)))
        # Pruned stays pruned: below every other score.
        yield scores if target.mask is None else scores.masked_fill(~target.mask, -math.inf)


def _mask(target: Target, scores: torch.Tensor, count: int, pattern: Pattern) -> torch.Tensor:
    """The legal mask nearest to `count` kept weights, inside the one the layer has."""
    old, layer = target.mask, target.module
    if old is not None and layer.pattern == pattern:
        density = nearest_density(pattern, scores, count)
        if layer.nnz == kept_count(density, scores.numel()):
            return old.clone()
    mask = keep_highest(scores, count, pattern)
    check_inside(target.name, mask, old, pattern)
    return mask


@dataclass(frozen=True)
class LayerResult:
    """One pruned weight.

    Attributes:
        name: dotted name of the layer.
        kind: "Linear" or "Conv2d".
        shape: shape of the weight.
        pattern: the rule the mask obeys.
        nnz: kept weights.
        itemsize: bytes per weight.
        tied: names of layers that share the weight and the mask.
        mask_digest: sha256 of the mask.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    pattern: Pattern
    nnz: int
    itemsize: int
    tied: tuple[str, ...] = ()
    mask_digest: str = ""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """[R, K] of the weight seen as a matrix."""
        return self.shape[0], math.prod(self.shape[1:])

    @property
    def numel(self) -> int:
        """Weights, pruned ones included."""
        return math.prod(self.shape)


def apply_plan(model: nn.Module, plan: PruningPlan) -> list[LayerResult]:
    """Mask the planned layers of `model`, in place; an error leaves it as it was."""
    pairs = zip(plan.targets, plan.masks, strict=True)
    with unchanged_on_error(model, contents=tensors_of(plan.targets)):
        results = [_apply(model, target, mask, plan.pattern) for target, mask in pairs]
        disable_fast_paths(model)
    return results


def _apply(model: nn.Module, target: Target, mask: torch.Tensor, pattern: Pattern) -> LayerResult:
    masked = mask_in(model, target.module, mask, pattern)
    for _, twin in target.twins:
        follower = mask_in(model, twin, mask, pattern)
        # One mask for one weight: whoever moves it moves it for all.
        follower._buffers["mask_bits"] = masked.mask_bits
        follower._buffers["_mask"] = masked._mask
    weight = masked.weight_parameter()
    return LayerResult(
        name=target.name,
        kind=title_of(masked),
        shape=tuple(weight.shape),
        pattern=pattern,
        nnz=masked.nnz,
        itemsize=weight.element_size(),
        tied=tuple(name for name, _ in target.twins),
        mask_digest=masked.mask_digest(),
    )
