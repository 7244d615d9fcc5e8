# SPDX-License-Identifier: Apache-2.0
"""Models that are a chain of layers, and what stands in for a part of one.

A stage runs the model's own forward with the layers of other stages replaced by `PassThrough`.
So nothing is written twice: masks, rotary tables and options of a family are computed by the
family's code, and every parameter keeps the name it has in the whole model.
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families import Chain, answers

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
            f"pipeline: {name} is not known to be a chain of layers; known are"
            f" {', '.join(CHAINS)}. Pass chain=Chain(layers=..., front=..., back=...) with the"
            " paths of its modules, or write it as an nn.Sequential."
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
