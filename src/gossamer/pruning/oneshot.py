# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning. Everything that can fail is in the plan; then layers become masked ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.nn import (
    MaskedConv2d,
    MaskedLinear,
    MaskedOutProj,
    MaskedWeight,
    attention_outputs,
    disable_fast_paths,
    replace_module,
    unchanged_on_error,
)
from gossamer.patterns import Pattern
from gossamer.pruning.plan import Plan, plan_oneshot
from gossamer.pruning.rules import Rules
from gossamer.pruning.scorers import Scorer
from gossamer.pruning.targets import PrunableLayer, Target


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


def prune_oneshot(
    model: nn.Module,
    *,
    sparsity: float | None = None,
    pattern: str | Pattern = "unstructured",
    scorer: str | Scorer = "magnitude",
    budget: str = "uniform",
    targets: Rules = None,
    ignore: Rules = None,
    data: Iterable[Any] | None = None,
) -> list[LayerResult]:
    """Replace layers of `model` by masked ones, in place; an error leaves it as it was.

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
    plan = plan_oneshot(
        model,
        sparsity=sparsity,
        pattern=pattern,
        scorer=scorer,
        budget=budget,
        targets=targets,
        ignore=ignore,
        data=data,
    )
    return apply_plan(model, plan)


def apply_plan(model: nn.Module, plan: Plan) -> list[LayerResult]:
    """Mask the planned layers of `model`, in place; an error leaves it as it was."""
    pairs = zip(plan.targets, plan.masks, strict=True)
    with unchanged_on_error(model, contents=plan.tensors()):
        results = [_apply(model, target, mask, plan.pattern) for target, mask in pairs]
        disable_fast_paths(model)
    return results


def _apply(model: nn.Module, target: Target, mask: torch.Tensor, pattern: Pattern) -> LayerResult:
    masked = _masked_layer(model, target.module, mask, pattern)
    for _, twin in target.twins:
        follower = _masked_layer(model, twin, mask, pattern)
        # One mask for one weight: whoever moves it moves it for all.
        follower._buffers["mask_bits"] = masked.mask_bits
        follower._buffers["_mask"] = masked._mask
    weight = masked.weight_parameter()
    return LayerResult(
        name=target.name,
        kind="Linear" if isinstance(masked, nn.Linear) else "Conv2d",
        shape=tuple(weight.shape),
        pattern=pattern,
        nnz=masked.nnz,
        itemsize=weight.element_size(),
        tied=tuple(name for name, _ in target.twins),
        mask_digest=masked.mask_digest(),
    )


def _masked_layer(
    model: nn.Module, module: PrunableLayer, mask: torch.Tensor, pattern: Pattern
) -> MaskedWeight:
    if isinstance(module, MaskedWeight):
        module.pattern = pattern
        module.set_mask(mask)
        return module
    masked: MaskedWeight
    if isinstance(module, nn.Conv2d):
        masked = MaskedConv2d.from_dense(module, mask, pattern)
    elif id(module) in attention_outputs(model):
        masked = MaskedOutProj.from_dense(module, mask, pattern)
    else:
        masked = MaskedLinear.from_dense(module, mask, pattern)
    replace_module(model, module, masked)
    return masked
