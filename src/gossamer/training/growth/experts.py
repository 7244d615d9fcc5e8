# SPDX-License-Identifier: Apache-2.0
"""More experts: every expert becomes several that are alike, with the state of its optimizer.

Where one expert is chosen for a token (Switch), its copies divide its tokens among them: the
router's probability is divided, too, so what they give is multiplied. Noise of a few last bits on
the router decides which copy a token goes to. Where several experts are chosen, or experts choose
tokens, all copies of a chosen expert work together, each with its share of the weight; noise that
adds up to zero over them makes them differ.

Legend: E experts, R rows of all of them, K inputs, M copies of each.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.nn.moe import MoE, has_experts, moe_layers
from gossamer.training.growth.plan import Growth, SlotPlan, check_memory, refuse_wrapped
from gossamer.training.growth.slots import GrownParameter, make_sparse, noise_on, numbers_of
from gossamer.training.growth.tensors import Axes, Factors, grown_tensor

# Of a router's numbers, in the spacing of floating point numbers: too little to change a function.
_LAST_BITS = 4.0
_ALONE = ("width", "depth", "kv_heads", "ffn", "heads", "layers", "vocabulary")


def plan_experts(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    growth: Growth,
    copies: int = 1,
) -> SlotPlan:
    """What more experts mean for `model`; everything that can be refused is refused here."""
    refuse_wrapped(model)
    fresh = Growth()
    for name in _ALONE:
        if getattr(growth, name) != getattr(fresh, name):
            raise InputError(
                f"grow: experts={growth.experts} and {name} are two growths; make one after the"
                " other."
            )
    mixtures = dict(moe_layers(model))
    if not mixtures:
        theirs = has_experts(model)
        raise InputError(
            f"grow: a {type(model).__name__} has no gossamer.nn.moe.MoE whose experts could become"
            f" {growth.experts} times as many."
            + (" Its experts are routed by a module that growth does not know." if theirs else "")
        )
    axes: dict[str, Axes] = {}
    for name, moe in mixtures.items():
        _check_capacity(name, moe, growth)
        inside = f"{name}." if name else ""
        axes[f"{inside}router.weight"] = Axes("experts")
        for part in ("up", "down"):
            scale = growth.experts if part == "down" and _divides(moe) else 1.0
            axes[f"{inside}experts.{part}.weight"] = Axes("experts", scale=scale)
            axes[f"{inside}experts.{part}.bias"] = Axes("experts", layout="vector", scale=scale)
    check_memory(model, optimizers, growth.experts, copies)
    return SlotPlan(growth, Factors(experts=growth.experts), axes)


def _divides(moe: MoE) -> bool:
    """Whether copies of an expert divide its tokens; else all of them work on each."""
    return moe.router.choice == "tokens" and moe.router.top_k == 1


def _check_capacity(name: str, moe: MoE, growth: Growth) -> None:
    if moe.router.capacity_factor is None or not _divides(moe) or growth.allow_approximate:
        return
    raise InputError(
        f"grow: experts of {name or 'the model'} have places for a part of their tokens"
        f" (capacity_factor={moe.router.capacity_factor}), and copies that divide the tokens drop"
        " others. Take a capacity of None (0 of a SwitchGPT), or allow_approximate=True."
    )


def built_with_experts(model: nn.Module, plan: SlotPlan) -> nn.Module:
    """A copy of the model whose mixtures have places for more experts."""
    larger, copies = copy.deepcopy(model), plan.factors.experts
    for _, moe in moe_layers(larger):
        router, experts = moe.router, moe.experts
        if not _divides(moe):
            router.top_k *= copies
        router.num_experts = experts.num_experts = router.num_experts * copies
        # The bias is compared with probabilities, which are divided.
        router.load, router.offsets = router.load.repeat(copies), router.offsets.repeat(copies)
        router.offsets /= copies
        for part in ("up", "down"):
            old: Any = getattr(experts, part)
            made = GroupedLinear(
                router.num_experts, old.in_features, old.out_features, old.bias is not None, "meta"
            )
            setattr(experts, part, made.train(old.training))
    settings: Any = getattr(larger, "zoo_args", dict)()
    if "num_experts" in settings:
        first: Any = next(moe.router for _, moe in moe_layers(larger))
        vars(larger).update(num_experts=first.num_experts, top_k=first.top_k)
    return larger


def fill_experts(
    model: nn.Module,
    larger: nn.Module,
    plan: SlotPlan,
    optimizers: Sequence[torch.optim.Optimizer],
    average: nn.Module | None = None,
) -> list[GrownParameter]:
    """Give the larger model its Parameters; with `average`, those of that average of `model`."""
    holder = model if average is None else average
    generator = torch.Generator().manual_seed(plan.growth.seed)
    layers, own = dict(sparse_layers(holder)), dict(sparse_layers(model))
    made: dict[int, GrownParameter] = {}
    for name, old in holder.named_parameters(remove_duplicate=False):
        place, _, key = name.rpartition(".")
        slot = f"{place}.weight" if key == "values" else name
        axes = plan.axes.get(slot)
        if id(old) not in made:
            is_expert = axes is not None
            layer = layers.get(place) if is_expert and key in ("weight", "values") else None
            numbers = numbers_of(old, layer, optimizers)
            axes = axes or Axes("fixed")
            value = grown_tensor(numbers, axes, plan.factors, "value")
            mask = None if layer is None else layer.mask().cpu().repeat(plan.factors.experts, 1)
            if is_expert and key != "bias":
                trained = model.get_parameter(name)
                spread = noise_on(numbers_of(trained, own.get(place), optimizers), plan.growth)
                value += _differing(value, slot, larger, spread, plan, generator)
            if mask is not None:
                value *= mask.to(value.device)
            param = nn.Parameter(value, requires_grad=old.requires_grad)
            pattern = None if layer is None else layer.pattern
            made[id(old)] = GrownParameter(place, param, axes, old, False, layer, mask, pattern)
        grown = made[id(old)]
        home = "weight" if grown.layer is not None else key
        larger.get_submodule(place)._parameters[home] = grown.param
    for grown in made.values():
        make_sparse(larger, grown)
    return list(made.values())


def _differing(
    value: torch.Tensor,
    slot: str,
    larger: nn.Module,
    spread: float,
    plan: SlotPlan,
    generator: torch.Generator,
) -> torch.Tensor:
    """What is added to copies so that they differ while the function stays."""
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
    place, _, part = slot.removesuffix(".weight").rpartition(".")
    moe: Any = larger.get_submodule(place if part == "router" else place.rpartition(".")[0])
    if not spread or part == "up" or (part == "router") != _divides(moe):
        return torch.zeros_like(value)
    if part == "router":
        return value * drawn * (_LAST_BITS * torch.finfo(value.dtype).eps)
    drawn_MRK = drawn.view(plan.factors.experts, -1, value.shape[1])
    return spread * (drawn_MRK - drawn_MRK.mean(0)).view_as(value)
