# SPDX-License-Identifier: Apache-2.0
"""A model cut into stages of about equal cost.

Nothing is copied: a stage is the model's containers around the very modules it owns, with
`PassThrough` in the place of all others. Drop the whole model afterwards and the rest is freed.

A link of the chain costs arithmetic and parameters. Arithmetic is counted by one forward without
gradients; a backward is twice that everywhere, so it does not change the cut. A compact layer
counts its kept weights where it runs on sparse kernels, and the dense product where it rebuilds the
dense weight: that is what it takes.
"""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import gossamer.nn  # noqa: F401  (registers the operations that are counted)
from gossamer.errors import InputError
from gossamer.nn.families import Chain
from gossamer.training.distributed.partition import Bounds, partition
from gossamer.training.distributed.pipeline.chain import Links, PassThrough, find_links

# An optimizer step touches a parameter once: weight, gradient and two moments are some 28 bytes of
# traffic, the time of about so many operations on CPUs and GPUs alike (1 to 10 FLOP per byte).
FLOPS_PER_PARAMETER = 128


class LinkCost(NamedTuple):
    """Of one link, for a step on the example.

    Attributes:
        parameters: trainable numbers; kept values of compact layers.
        flops: of one forward of the example.
    """

    parameters: int
    flops: int

    @property
    def total(self) -> float:
        """One number to balance: a forward, a backward and the update, in FLOPs."""
        return 3.0 * self.flops + FLOPS_PER_PARAMETER * self.parameters


class TiedWeight(NamedTuple):
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
    links: Links
    costs: tuple[LinkCost, ...]
    bounds: Bounds
    tied: tuple[TiedWeight, ...]

    @property
    def num_stages(self) -> int:
        """Stages."""
        return len(self.bounds)

    def paths(self, stage: int) -> tuple[str, ...]:
        """Modules that a stage owns."""
        return _paths(self.links, self.bounds[stage])

    def cost(self, stage: int) -> LinkCost:
        """What a stage costs."""
        costs = self.costs[slice(*self.bounds[stage])]
        return LinkCost(sum(c.parameters for c in costs), sum(c.flops for c in costs))

    def stage(self, model: nn.Module, index: int) -> nn.Module:
        """The module of one stage; it shares its parameters with `model`, under the same names."""
        own = set(self.paths(index))
        replaced = {}
        for path in _paths(self.links, (0, len(self.links))):
            module = model.get_submodule(path)
            replaced[id(module)] = module if path in own else PassThrough(module)
        part: nn.Module = copy.deepcopy(model, replaced)
        entry = self.chain.entry if index > 0 else ""

        def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Hidden states as their keyword, and keywords of the family."""
            if entry:
                kwargs, args = {**kwargs, entry: args[0]}, args[1:]
            return args, {**dict(self.chain.keywords), **kwargs}

        part.register_forward_pre_hook(arguments, with_kwargs=True)
        if self.chain.output:
            part.register_forward_hook(self._tensor_of)
        return part

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


def _paths(links: Links, bounds: tuple[int, int]) -> tuple[str, ...]:
    return tuple(path for link in links[slice(*bounds)] for path in link)


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
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    training = model.training
    try:
        with torch.no_grad(), counter:
            model.eval()(*example, **(keywords or {}))
    finally:
        model.train(training)
    counts, root = counter.get_flop_counts(), type(model).__name__
    costs = tuple(
        LinkCost(
            sum(
                parameter.numel()
                for path in link
                for parameter in model.get_submodule(path).parameters()
                if parameter.requires_grad
            ),
            sum(sum(counts.get(f"{root}.{path}", {}).values()) for path in link),
        )
        for link in links
    )
    bounds = partition([cost.total for cost in costs], num_stages)
    users: dict[nn.Parameter, dict[int, str]] = {}
    for stage, ends in enumerate(bounds):
        for path in _paths(links, ends):
            for name, parameter in model.get_submodule(path).named_parameters():
                users.setdefault(parameter, {}).setdefault(stage, f"{path}.{name}")
    tied = tuple(
        TiedWeight(tuple(names.values()), tuple(names))
        for names in users.values()
        if len(names) > 1
    )
    return PipelineCut(chain, links, costs, bounds, tied)


def _formulas() -> dict[Any, Any]:
    """FLOPs of operations that torch's counter does not know; shapes stand for tensors."""
    ops = torch.ops.gossamer

    def compact(x: Any, values: Any, mask_bits: Any, *rest: Any, **_: Any) -> int:
        _bias, columns, *sparse = rest
        weights = values[0] if any(sparse) else mask_bits[0] * columns
        return 2 * torch.Size(x[:-1]).numel() * int(weights)

    def resident(x: Any, values: Any, dense: Any, *_: Any, **__: Any) -> int:
        return 2 * torch.Size(x[:-1]).numel() * int(dense[0] * dense[1])

    def conv(x: Any, values: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return 2 * int(x[0] * out_shape[2] * out_shape[3] * values[0])

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    return {
        ops.compact_linear: compact,
        ops.resident_linear: resident,
        ops.compact_conv: conv,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    }
