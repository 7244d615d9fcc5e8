# SPDX-License-Identifier: Apache-2.0
"""The Parameters of the larger model: their numbers, their masks, and where each comes from.

Zeros between copies may stay zeros under a mask, and noise keeps off them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from gossamer.errors import InputError, PatternError
from gossamer.nn.forms import in_form_of, mask_in
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.patterns import Pattern, Unstructured, parse_pattern
from gossamer.training.growth.plan import Growth, GrowthPlan
from gossamer.training.growth.roles import axes_of
from gossamer.training.growth.tensors import (
    Axes,
    Factors,
    Quantity,
    grown_tensor,
    in_blocks,
    repeated_heads,
    shares,
)
from gossamer.training.optim import SmallStateOptimizer

TILE: Final = 16


@dataclass
class GrownParameter:
    """One Parameter of the larger model and where it comes from.

    Attributes:
        module: path of its place, of the first one if it is tied.
        param: itself; in the shape of the dense weight until its layer becomes sparse.
        axes: what its sides stand for.
        source: the old Parameter; None if it is fresh.
        is_new: whether it belongs to a new block.
        layer: the sparse layer it comes from, if it does.
        mask: its mask; None if everything is kept.
        pattern: of the mask.
        larger_layer: the sparse layer of the larger model that holds it, if one does.
    """

    module: str
    param: nn.Parameter
    axes: Axes
    source: nn.Parameter | None = None
    is_new: bool = True
    layer: Any = None
    mask: torch.Tensor | None = None
    pattern: Pattern | None = None
    larger_layer: Any = None

    def grown(self, tensor: torch.Tensor, quantity: Quantity, factors: Factors) -> torch.Tensor:
        """A tensor of the old Parameter's shape, in the shape of the new one."""
        whole = tensor if self.layer is None else self.layer.spread(tensor)
        made = grown_tensor(whole, self.axes, factors, quantity)
        found: torch.Tensor = (
            made if self.larger_layer is None else self.larger_layer.gathered(made)
        )
        return found


def fill(
    model: nn.Module,
    larger: nn.Module,
    plan: GrowthPlan,
    optimizers: Sequence[torch.optim.Optimizer],
    average: nn.Module | None = None,
) -> list[GrownParameter]:
    """Give the larger model its Parameters, and its layers their forms; tied names share one.

    With `average`, `larger` becomes what that average of the weights of `model` is then: with the
    noise of the model itself, so that the average stays near it.
    """
    holder = model if average is None else average
    generator = torch.Generator().manual_seed(plan.growth.seed)
    sparse, own = dict(sparse_layers(holder)), dict(sparse_layers(model))
    like = next(model.parameters())
    made: dict[Any, GrownParameter] = {}
    for name, axes in axes_of(larger, plan.anatomy).items():
        source, is_new = plan.source_of(name)
        place, _, key = name.rpartition(".")
        if source is not None and source not in plan.axes and not is_new:
            raise InputError(
                f"grow: {source} is not there, as the first block has another form than the others;"
                " so it stays the first. Put new blocks after it, or on top."
            )
        if source not in plan.axes or (is_new and plan.growth.mode == "random"):
            fresh = larger.get_parameter(name).detach().to(like.device, like.dtype, copy=True)
            home: Any = name
            made[home] = GrownParameter(place, nn.Parameter(fresh), axes)
        else:
            home_of = source.rpartition(".")[0] if key == "weight" else ""
            layer = sparse.get(home_of)
            old = holder.get_parameter(source) if layer is None else layer.trained()
            # Tied names share one Parameter; copies in new blocks are their own.
            home = (id(old), name if is_new else "")
            if home not in made:
                axes, mine = plan.axes[source], own.get(home_of)
                trained = model.get_parameter(source) if mine is None else mine.trained()
                noise = noise_on(numbers_of(trained, mine, optimizers), plan.growth)
                value, mask, pattern = _grown(
                    numbers_of(old, layer, optimizers), axes, layer, plan, noise, generator
                )
                param = nn.Parameter(value, requires_grad=old.requires_grad)
                made[home] = GrownParameter(place, param, axes, old, is_new, layer, mask, pattern)
        param = made[home].param
        if is_new and _begins_at_zero(name, plan):
            param.fill_(_nothing(name, plan))
        module = larger.get_submodule(place)
        there = module._parameters[key]
        if there is None or there.shape != param.shape:
            found = None if there is None else list(there.shape)
            raise InputError(
                f"grow: {name} would have shape {list(param.shape)}, and the larger model"
                f" expects {found}. Its settings do not say what its parameters are."
            )
        module._parameters[key] = param
    for slot in made.values():
        make_sparse(larger, slot)
    return list(made.values())


def numbers_of(
    old: nn.Parameter, layer: Any, optimizers: Sequence[torch.optim.Optimizer]
) -> torch.Tensor:
    """The numbers of an old Parameter in the shape of the dense weight, zeros where it has them."""
    numbers = old.detach()
    for optimizer in optimizers:
        if isinstance(optimizer, SmallStateOptimizer) and old in optimizer.state:
            # In the precision in which it is trained.
            numbers = optimizer.master_of(old)
    if layer is not None:
        numbers = layer.spread(numbers)
        numbers = torch.where(layer.mask().view_as(numbers), numbers, 0)
    return numbers


def noise_on(numbers: torch.Tensor, growth: Growth) -> float:
    """The size of the noise on a weight of these numbers; zeros do not count."""
    counted = numbers[numbers != 0]
    if growth.symmetry != "noise" or not counted.numel():
        return 0.0
    return growth.sigma * float(counted.double().std(correction=0))


def _grown(
    numbers: torch.Tensor,
    axes: Axes,
    layer: Any,
    plan: GrowthPlan,
    noise: float,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor | None, Pattern | None]:
    """What the numbers of a Parameter become in the larger model, their mask and its pattern."""
    growth, factors = plan.growth, plan.factors
    mask, pattern = _mask_between(axes, layer, plan, numbers.shape, generator)
    if mask is not None:
        value = _masked_value(numbers, axes, factors, noise, mask, generator)
    else:
        is_uniform = growth.blocks == "uniform"
        value = grown_tensor(
            numbers,
            axes,
            factors,
            "value",
            noise=noise,
            is_uniform=is_uniform,
            generator=generator,
        )
    return value, mask, pattern


def _begins_at_zero(name: str, plan: GrowthPlan) -> bool:
    """Whether a slot of a new block is zero, so that the block adds nothing."""
    path, _, key = name.rpartition(".")
    module = path.removeprefix(f"{plan.anatomy.layers}.").partition(".")[2]
    parts, mode = plan.anatomy.block, plan.growth.mode
    if mode == "out0":
        # What a part gives may go through a norm, whose gradient at zero has no bound.
        return module in (plan.anatomy.facts.norms_out or (parts.output, parts.down))
    return mode == "ln0" and (module in parts.norms or key == "bias")


def _nothing(name: str, plan: GrowthPlan) -> float:
    """The number of a slot that begins at zero: norms around 1 give nothing at -1."""
    facts, module = plan.anatomy.facts, name.rpartition(".")[0]
    is_norm = module.endswith((*plan.anatomy.block.norms, *facts.norms_out))
    return -1.0 if facts.around_one and is_norm else 0.0


def make_sparse(larger: nn.Module, grown: GrownParameter) -> None:
    """Give a layer of the larger model the form of its source, or a mask that may still move."""
    if grown.mask is None or grown.pattern is None:
        return
    module = larger.get_submodule(grown.module)
    mask = grown.mask.to(grown.param.device)
    if grown.layer is None:
        mask_in(larger, module, mask, grown.pattern)
        return
    made: Any = in_form_of(grown.layer, module, mask, grown.pattern)
    replace_module(larger, module, made)
    grown.param, grown.larger_layer = made.trained(), made


def _mask_between(
    axes: Axes, layer: Any, plan: GrowthPlan, shape: torch.Size, generator: torch.Generator
) -> tuple[torch.Tensor | None, Pattern | None]:
    """The mask of a grown weight and its pattern; None if everything is kept.

    Args:
        axes: of the weight.
        layer: the sparse layer of the old weight; None if it is dense.
        plan: says how much between the copies is opened.
        shape: of the old weight.
        generator: draws which tiles are opened.
    """
    opened, made, read = plan.growth.opened, *map(plan.factors.of, (axes.made, axes.read))
    is_partly_open = opened < 1.0 and made > 1 and read > 1
    if layer is None and not is_partly_open:
        return None, None
    if len(shape) != 2:
        raise InputError(
            "grow: there is no rule for the zeros of a convolution. Make it dense before."
        )
    if axes.layout != "matrix":
        raise InputError(
            "grow: a Conv1D of transformers has no mask, so zeros between its copies cannot be kept"
            " (opened < 1). Call gossamer.nn.conv1d_to_linear(model) before making the optimizer."
        )
    every = torch.ones(shape, dtype=torch.bool)
    is_own = shares(made, read) > 0
    free = in_blocks(every, ~is_own, axes.segments)
    if is_partly_open:
        free &= _some_tiles(free.shape, opened, generator)
    whole = free | in_blocks(every if layer is None else layer.mask().cpu(), is_own, axes.segments)
    whole, factors = repeated_heads(whole, axes, plan.factors), plan.factors
    if axes.made == "vocabulary" and factors.vocabulary:
        # Whole rows for new tokens.
        whole = torch.cat((whole, whole.new_ones(factors.vocabulary, whole.shape[1])))
    pattern = parse_pattern(f"block:{TILE}x{TILE}") if layer is None else layer.pattern
    return whole, pattern if _obeys(whole, pattern) else Unstructured()


def _masked_value(
    numbers: torch.Tensor,
    axes: Axes,
    factors: Factors,
    noise: float,
    mask: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Values under a mask: noise adds up to zero over the kept places that read one number."""
    value = grown_tensor(numbers, axes, factors, "value")
    kept, read = mask.to(value.device), factors.of(axes.read)
    if noise and read > 1:
        open_RQI = kept.view(len(kept), read, -1)
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        noise_RQI = drawn.view_as(open_RQI) * open_RQI
        many_RI = open_RQI.sum(1, keepdim=True).clamp(min=1)
        noise_RQI -= noise_RQI.sum(1, keepdim=True) / many_RI
        value = value + noise * (noise_RQI * open_RQI).view_as(value)
    return value * kept


def _some_tiles(shape: torch.Size, share: float, generator: torch.Generator) -> torch.Tensor:
    """A random share of the tiles of a matrix."""
    rows, columns = (-(-size // TILE) for size in shape)
    chosen = torch.rand(rows, columns, generator=generator) < share
    wide = chosen.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)
    return wide[: shape[0], : shape[1]]


def _obeys(mask: torch.Tensor, pattern: Pattern) -> bool:
    try:
        pattern.check_shape((mask.shape[0], mask.shape[1]))
        pattern.validate(mask)
    except PatternError:
        return False
    return True
