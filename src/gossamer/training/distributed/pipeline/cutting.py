# SPDX-License-Identifier: Apache-2.0
"""A model that is a chain of layers, cut into stages of about equal cost.

A stage runs the model's own forward with the layers of other stages replaced by `PassThrough`.
So nothing is written twice: masks, rotary tables and options of a family are computed by the
family's code, and every parameter keeps the name it has in the whole model.

Nothing is copied: a stage is the model's containers around the very modules it owns. Drop the whole
model afterwards and the rest is freed.

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
from gossamer.nn.families import Chain, answers, why_not
from gossamer.training.distributed.partition import Bounds, partition

# By the name of the class, which is looked up and never imported.
CHAINS = {name: chain for chains in answers("chains").values() for name, chain in chains.items()}
# The indivisible pieces in order, each as the paths of its modules.
Links = tuple[tuple[str, ...], ...]


def find_links(
    model: nn.Module, num_stages: int, chain: Chain | None = None
) -> tuple[Chain, Links]:
    """The chain of `model` and its links, if they are enough for so many stages.

    Args:
        model: of a known class, or a subclass of one, if no chain is given.
        num_stages: at most as many as layers.
        chain: where the model keeps its layers.
    """
    name = type(model).__name__
    if not isinstance(num_stages, int) or num_stages < 1:
        raise InputError(f"pipeline: the number of stages must be at least 1; got {num_stages}.")
    if chain is None:
        known = (CHAINS.get(ancestor.__name__) for ancestor in type(model).__mro__)
        chain = next((found for found in known if found is not None), None)
    if chain is None:
        raise InputError(
            f"pipeline: {name} is not known to be a chain of layers.{why_not(model, 'chains')}"
            f" Known are {', '.join(CHAINS)}. Pass chain=Chain(layers=..., front=..., back=...)"
            " with the paths of its modules, or write it as an nn.Sequential."
        )
    links = _links_of(model, chain)
    layers = len(links) - bool(chain.front) - bool(chain.back)
    if num_stages > layers:
        raise InputError(
            f"pipeline: {num_stages} stages need at least as many layers, but {name} has {layers}."
            f" Use at most {layers} stages."
        )
    return chain, links


def _links_of(model: nn.Module, chain: Chain) -> Links:
    """Front and back are links of their own, so that an expensive head may be alone.

    What has no parameters (activations in a Sequential) stays with the layer before it, or with the
    first one.
    """
    for path in (chain.layers, *chain.front, *chain.back):
        try:
            model.get_submodule(path)
        except AttributeError as missing:
            raise InputError(
                f"pipeline: {type(model).__name__} has no module {path!r}, which its chain names."
            ) from missing
    prefix = f"{chain.layers}." if chain.layers else ""
    layers: list[tuple[str, ...]] = []
    early: tuple[str, ...] = ()
    for name, layer in model.get_submodule(chain.layers).named_children():
        if any(True for _ in layer.parameters()):
            layers.append((*early, prefix + name))
            early = ()
        elif layers:
            layers[-1] += (prefix + name,)
        else:
            early += (prefix + name,)
    if not layers:
        raise InputError(
            f"pipeline: {type(model).__name__} has no layers with parameters"
            f" {f'in {chain.layers!r} ' if chain.layers else ''}to put into stages."
        )
    links = tuple(link for link in (chain.front, *layers, chain.back) if link)
    owned = tuple(f"{path}." for link in links for path in link)
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not name.startswith(owned):
            raise InputError(
                f"pipeline: parameter {name!r} of {type(model).__name__} belongs to no link of its"
                " chain, so no stage would train it. Name its module in front or back of the Chain."
            )
    return links


class PassThrough(nn.Module):
    """Stands in for a module of another stage: hidden states go through, positions add nothing."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        # Models ask their layers for plain facts, such as the kind of attention.
        for name, value in vars(replaced).items():
            if isinstance(value, (str, int, float)) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(
        self, x: torch.Tensor | None = None, *_: Any, inputs_embeds: Any = None, **__: Any
    ) -> torch.Tensor:
        """The hidden states, wherever they were given; zero for integer positions."""
        hidden = inputs_embeds if x is None else x
        return hidden if hidden.is_floating_point() else torch.zeros((), device=hidden.device)


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
        chain: where the layers are; found by the model's class if not given. One that is given is
            tried: stages one behind the other must give what the model gives for the example.
    """
    is_told = chain is not None
    chain, links = find_links(model, num_stages, chain)
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    training = model.training
    try:
        with torch.no_grad(), counter:
            whole = model.eval()(*example, **(keywords or {}))
        if is_told:
            _try_chain(
                model, PipelineCut(chain, links, (), _halves(links), ()), whole, example, keywords
            )
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


def _halves(links: Links) -> Bounds:
    """Two stages: what runs outside of the chain then runs twice. One, where there is one link."""
    middle = (len(links) + 1) // 2
    return tuple(ends for ends in ((0, middle), (middle, len(links))) if ends[0] < ends[1])


def _try_chain(
    model: nn.Module,
    halves: PipelineCut,
    whole: Any,
    example: tuple[Any, ...],
    keywords: dict[str, Any] | None,
) -> None:
    """Refuse a chain whose stages compute something else than the model.

    What a model does outside of its links, such as scaling embeddings or capping logits, every
    stage would do.
    """
    passed = example
    with torch.no_grad():
        for index in range(halves.num_stages):
            passed = (halves.stage(model, index)(*passed, **(keywords or {})),)
    (found,) = passed
    expected = next(
        (
            t
            for name in halves.chain.output
            if isinstance(t := getattr(whole, name, None), torch.Tensor)
        ),
        whole,
    )
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        raise InputError(
            f"pipeline: stages must give one tensor, and {type(model).__name__} cut by this chain"
            f" gives a {type(found).__name__}. Name the attribute that holds it in Chain.output."
        )
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    same = found.shape == expected.shape
    off = float((found - expected).abs().max()) if same and expected.numel() else 0.0
    # Roundings may fall otherwise, by kernels for other shapes; what runs twice is no rounding.
    if not same or not off <= 1e-3 * max(largest, 1e-30):
        raise InputError(
            f"pipeline: cut by this chain, {type(model).__name__} gives other results (off by"
            f" {off:.3g} of {largest:.3g}): something that it computes outside of the chain's"
            f" modules would run in every stage.{why_not(model, 'chains')} Move it into a module"
            " that the chain names."
        )


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
