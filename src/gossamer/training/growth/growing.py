# SPDX-License-Identifier: Apache-2.0
"""`gossamer.grow`: a larger model that computes the same, with its whole training state."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gossamer.errors import InputError
from gossamer.training.growth.experts import built_with_experts, fill_experts, plan_experts
from gossamer.training.growth.larger import built_larger
from gossamer.training.growth.plan import Growth, GrowthPlan, SlotPlan, plan_growth
from gossamer.training.growth.slots import GrownParameter, fill
from gossamer.training.growth.state import check_growable, move_optimizer

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
_GROWN: "WeakKeyDictionary[nn.Module, SlotPlan]" = WeakKeyDictionary()


def grow(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    width: int = 1,
    depth: int = 1,
    averages: Sequence[AveragedModel] = (),
    **more: Any,
) -> nn.Module:
    """Make a larger model that computes the same; the optimizer's whole state follows.

    The model stays as it is. The optimizer holds the parameters of the larger model afterwards, in
    the same groups, with moments that fit the gradients to come and the same step counts, so that
    a scheduler of its learning rates goes on. Nothing is changed if an error is raised.

    Args:
        model: of a family that says how it grows: decoders, encoders of texts and of images,
            `zoo.GPT`, `zoo.TinyEncoder`; for `experts` any model with `gossamer.nn.moe.MoE`.
            Masked and compact layers stay so.
        optimizer: holds its parameters; several of them if they share the parameters among them,
            as Muon and AdamW do; None grows weights only.
        width: copies of everything: stream, heads and feed-forward part.
        depth: how many times as many blocks.
        averages: of the model's weights (EMA, SWA), as `torch.optim.swa_utils` makes them. They
            hold the larger model's average afterwards, with the noise that the model itself gets.
        **more: further fields of `gossamer.training.growth.Growth`, such as `layers`, `ffn`,
            `mode`, `opened`.

    Raises:
        InputError: a family or parameter that is not known, factors that do not fit, state without
            a rule.
        ResourceError: the larger model and its state do not fit into memory.
    """
    _check_averages(model, averages)
    optimizers = _listed(optimizer)
    growth = Growth.of(width=width, depth=depth, **more)
    many = 1 + len(averages)
    plan: SlotPlan
    if growth.experts > 1:
        plan = plan_experts(model, optimizers, growth, many)
    else:
        plan = plan_growth(model, optimizers, growth, many)
    named: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    for one in optimizers:
        check_growable(one, named, is_kept=growth.state != "reset")
    averaged_models = [averaged.module for averaged in averages]
    with torch.no_grad():
        larger, slots = _made(model, plan, optimizers)
        copies = [_made(model, plan, optimizers, one)[0] for one in averaged_models]
    if len(optimizers) > 1 and any(slot.source is None for slot in slots):
        raise InputError(
            "grow: new blocks without a source (mode='random', or a model without layers) belong to"
            " no optimizer, and there are several. Give one, or use mode='out0'."
        )
    for one in optimizers:
        move_optimizer(one, slots, plan, larger)
    for averaged, made in zip(averages, copies, strict=True):
        averaged.module = made.train(averaged.module.training)
    _GROWN[larger] = plan
    return larger


def _made(
    model: nn.Module,
    plan: SlotPlan,
    optimizers: Sequence[torch.optim.Optimizer],
    average: nn.Module | None = None,
) -> tuple[nn.Module, list[GrownParameter]]:
    """The larger model, or that of an average of `model`, and where its Parameters come from."""
    if not isinstance(plan, GrowthPlan):
        larger = built_with_experts(average or model, plan)
        return larger, fill_experts(model, larger, plan, optimizers, average)
    larger = built_larger(model, plan)
    slots = fill(model, larger, plan, optimizers, average)
    _copy_buffers(average or model, larger, plan)
    return larger, slots


def _listed(optimizer: Optimizers) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that were given; InputError if a parameter has two of them."""
    if optimizer is None:
        return ()
    found = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    for one in found:
        if not issubclass(type(one), torch.optim.Optimizer):
            raise InputError(f"grow: expected a torch optimizer, got {type(one).__name__}.")
    held = [p for one in found for group in one.param_groups for p in group["params"]]
    if len(set(held)) < len(held):
        raise InputError("grow: two of the optimizers hold the same parameter.")
    return found


def grown_from(model: nn.Module) -> SlotPlan:
    """How a model was grown in this process."""
    if model not in _GROWN:
        raise InputError("the second model was not made by gossamer.grow in this process.")
    return _GROWN[model]


def _check_averages(model: nn.Module, averages: Sequence[AveragedModel]) -> None:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for averaged in averages:
        if not isinstance(averaged, AveragedModel):
            raise InputError(
                "grow: averages takes AveragedModels of torch.optim.swa_utils, got a"
                f" {type(averaged).__name__}."
            )
        found = {name: p.shape for name, p in averaged.module.named_parameters()}
        if found != shapes:
            name = next(n for n in shapes | found if shapes.get(n) != found.get(n))
            raise InputError(f"grow: {name!r} is not the same in the model and in its average.")


def _copy_buffers(model: nn.Module, larger: nn.Module, plan: GrowthPlan) -> None:
    """Tensors that are not trained: those of the same name and shape are carried over."""
    old, by_width = dict(model.named_buffers()), plan.anatomy.facts.embedding_scale
    for name, buffer in larger.named_buffers():
        is_kept = name in old and old[name].shape == buffer.shape
        is_own = name.endswith("mask_bits") or name.rpartition(".")[2] == by_width
        if is_kept and not is_own:
            buffer.copy_(old[name])
