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
CHAINS: dict[str, Chain] = {
    name: chain for chains in answers("chains").values() for name, chain in chains.items()
}


def chain_of(model: nn.Module) -> Chain:
    """The chain of a known model; subclasses of known classes count."""
    for ancestor in type(model).__mro__:
        found = CHAINS.get(ancestor.__name__)
        if found is not None:
            return found
    raise InputError(
        f"pipeline: {type(model).__name__} is not known to be a chain of layers; known are"
        f" {', '.join(CHAINS)}. Pass chain=Chain(layers=..., front=..., back=...) with the paths of"
        " its modules, or write it as an nn.Sequential."
    )


def links_of(model: nn.Module, chain: Chain) -> tuple[tuple[str, ...], ...]:
    """The indivisible pieces in order, each as the paths of its modules.

    Front and back are links of their own, so that an expensive head may be alone. What has no
    parameters (activations in a Sequential) stays with the layer before it, or with the first one.
    """
    prefix = f"{chain.layers}." if chain.layers else ""
    layers: list[tuple[str, ...]] = []
    early: tuple[str, ...] = ()
    for name, layer in _module_at(model, chain.layers).named_children():
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
    for path in (*chain.front, *chain.back):
        _module_at(model, path)
    links = tuple(link for link in (chain.front, *layers, chain.back) if link)
    _check_complete(model, links)
    return links


def num_layers(links: tuple[tuple[str, ...], ...], chain: Chain) -> int:
    """Links that are layers."""
    return len(links) - bool(chain.front) - bool(chain.back)


def _module_at(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as missing:
        raise InputError(
            f"pipeline: {type(model).__name__} has no module {path!r}, which its chain names."
        ) from missing


def _check_complete(model: nn.Module, links: tuple[tuple[str, ...], ...]) -> None:
    owned = tuple(f"{path}." for link in links for path in link)
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not name.startswith(owned):
            raise InputError(
                f"pipeline: parameter {name!r} of {type(model).__name__} belongs to no link of its"
                " chain, so no stage would train it. Name its module in front or back of the Chain."
            )


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
