# SPDX-License-Identifier: Apache-2.0
"""A model cut into stages of about equal cost.

Nothing is copied: a stage is the model's containers around the very modules it owns, with
`PassThrough` in the place of all others. Drop the whole model afterwards and the rest is freed.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families import Chain
from gossamer.training.distributed.partition import Bounds, partition
from gossamer.training.distributed.pipeline.chain import (
    PassThrough,
    chain_of,
    links_of,
    num_layers,
)
from gossamer.training.distributed.pipeline.costs import LinkCost, link_costs


@dataclass(frozen=True)
class TiedWeight:
    """A parameter that more than one stage uses: its gradients have to be added up.

    Attributes:
        names: of the parameter in each stage.
        stages: who has it, ascending.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True)
class PipelineCut:
    """Which links make which stage.

    Attributes:
        chain: where the model keeps its layers.
        links: module paths of each link.
        costs: of each link.
        bounds: first link and link after the last, for each stage.
        tied: parameters of several stages.
    """

    chain: Chain
    links: tuple[tuple[str, ...], ...]
    costs: tuple[LinkCost, ...]
    bounds: Bounds
    tied: tuple[TiedWeight, ...]

    @property
    def num_stages(self) -> int:
        """Stages."""
        return len(self.bounds)

    def paths(self, stage: int) -> tuple[str, ...]:
        """Modules that a stage owns."""
        start, stop = self.bounds[stage]
        return tuple(path for link in self.links[start:stop] for path in link)

    def cost(self, stage: int) -> LinkCost:
        """What a stage costs."""
        costs = self.costs[slice(*self.bounds[stage])]
        return LinkCost(sum(c.parameters for c in costs), sum(c.flops for c in costs))

    def stage(self, model: nn.Module, index: int) -> nn.Module:
        """The module of one stage; it shares its parameters with `model`, under the same names."""
        own = set(self.paths(index))
        replaced: dict[int, Any] = {}
        for path in (path for link in self.links for path in link):
            module = model.get_submodule(path)
            replaced[id(module)] = module if path in own else PassThrough(module)
        part: nn.Module = copy.deepcopy(model, replaced)
        part.register_forward_pre_hook(self._arguments_of(index), with_kwargs=True)
        if self.chain.output:
            part.register_forward_hook(self._tensor_of)
        return part

    def _arguments_of(self, index: int) -> Any:
        """A hook that gives hidden states as their keyword, and keywords of the family."""
        entry = self.chain.entry if index > 0 else ""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if entry:
                kwargs, args = {**kwargs, entry: args[0]}, args[1:]
            return args, {**dict(self.chain.keywords), **kwargs}

        return hook

    def _tensor_of(self, module: nn.Module, args: Any, output: Any) -> torch.Tensor:
        """A hook that takes the tensor out of a model's output object."""
        for name in self.chain.output:
            tensor = getattr(output, name, None)
            if isinstance(tensor, torch.Tensor):
                return tensor
        raise InputError(
            f"pipeline: {type(module).__name__} gave a {type(output).__name__} without any of"
            f" {', '.join(self.chain.output)}."
        )


def find_links(
    model: nn.Module, num_stages: int, chain: Chain | None = None
) -> tuple[Chain, tuple[tuple[str, ...], ...]]:
    """The chain of `model` and its links, if they are enough for so many stages."""
    if not isinstance(num_stages, int) or num_stages < 1:
        raise InputError(f"pipeline: the number of stages must be at least 1; got {num_stages}.")
    chain = chain_of(model) if chain is None else chain
    links = links_of(model, chain)
    layers = num_layers(links, chain)
    if num_stages > layers:
        raise InputError(
            f"pipeline: {num_stages} stages need at least as many layers, but"
            f" {type(model).__name__} has {layers}. Use at most {layers} stages."
        )
    return chain, links


def cut(
    model: nn.Module,
    num_stages: int,
    example: tuple[Any, ...],
    *,
    keywords: dict[str, Any] | None = None,
    chain: Chain | None = None,
) -> PipelineCut:
    """Contiguous stages of `model` whose dearest one is as cheap as possible.

    Args:
        model: a chain of layers.
        num_stages: at most as many as layers.
        example: positional arguments of the model's forward, to count its arithmetic with.
        keywords: keyword arguments to go with it.
        chain: where the layers are; found by the model's class if not given.
    """
    chain, links = find_links(model, num_stages, chain)
    costs = link_costs(model, links, example, keywords)
    bounds = partition([cost.total for cost in costs], num_stages)
    return PipelineCut(chain, links, costs, bounds, _tied(model, links, bounds))


def _tied(
    model: nn.Module, links: tuple[tuple[str, ...], ...], bounds: Bounds
) -> tuple[TiedWeight, ...]:
    found: dict[nn.Parameter, dict[int, str]] = {}
    for stage, (start, stop) in enumerate(bounds):
        for path in (path for link in links[start:stop] for path in link):
            for name, parameter in model.get_submodule(path).named_parameters():
                found.setdefault(parameter, {}).setdefault(stage, f"{path}.{name}")
    return tuple(
        TiedWeight(tuple(names.values()), tuple(names))
        for names in found.values()
        if len(names) > 1
    )
