# SPDX-License-Identifier: Apache-2.0
"""Sparse upcycling (arXiv 2212.05055): each feed-forward part becomes several experts, its copies.

All experts are equal at first and the weights of a token's experts sum to 1, so the model computes
what it did; noise and the tokens that each sees make them differ. The optimizer's state follows: an
expert gets the part 1 / E of the gradient, so means of gradients are divided by E. Its batches are
smaller by E and weigh 1 / k, so the noise of its gradient, which is most of a mean of squares,
falls by E k.

Legend: E experts, k experts of a token, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery import unchanged_on_error
from gossamer.nn.surgery.mixtures import (
    ExpertWeights,
    FeedForwardPart,
    MixtureSizes,
    become_mixture,
    feed_forwards,
    mixtures_of,
)
from gossamer.training.growth.state import check_growable, is_scalar, quantity_of
from gossamer.training.optim import SmallStateOptimizer

__all__ = ["upcycle"]

_ROUTER_STD = 0.02


def upcycle(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    experts: int = 8,
    top_k: int = 2,
    noise: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Make experts of the feed-forward parts of a dense model, in place, and give it back.

    A Llama or Mistral becomes a Mixtral, a Qwen3 a Qwen3-MoE, `zoo.GPT` a `zoo.SwitchGPT`. With
    `noise` 0 the model computes what it did; a SwitchGPT with one expert for each token weighs it
    by the router's probability, and does so up to what that differs from 1 / E.

    Args:
        model: dense. It is as it was if an error is raised.
        optimizer: holds its parameters; its groups and state follow, with step counts as they were.
            Routers join the group of the first feed-forward weight.
        experts: E.
        top_k: k.
        noise: of all experts but the first, as a part of the standard deviation of each weight.
        seed: of routers and noise.
    """
    parts = feed_forwards(model)
    if not parts:
        raise InputError(f"upcycle: {type(model).__name__} has no blocks, so nothing can be done.")
    if not 0 <= noise < 1:
        raise InputError(f"upcycle: noise must be in [0, 1), got {noise}.")
    sizes = MixtureSizes(experts, top_k, parts[0].width)
    is_switch = not hasattr(model, "config")
    if top_k == 1 and experts > 1 and not is_switch:
        raise InputError(
            f"upcycle: a {type(model).__name__} with experts gives the only expert of a token the"
            " weight 1, so that its router would never learn. Use top_k: 2."
        )
    _check_optimizer(model, optimizer)
    old = [_parameters_of(part) for part in parts]
    generator = torch.Generator().manual_seed(seed)
    # A Switch layer weighs its only expert by about 1 / E.
    scale = float(experts) if is_switch and top_k == 1 else 1.0
    with unchanged_on_error(model, optimizer, contents=()), torch.no_grad():
        weights = {part.block: _copies(part, sizes, noise, scale, generator) for part in parts}
        become_mixture(model, sizes, weights)
        if optimizer is not None:
            _follow(optimizer, model, old, sizes)
    return model


def _parameters_of(part: FeedForwardPart) -> list[tuple[str, list[nn.Parameter]]]:
    """What each Parameter of the experts is made of, under its name there."""
    ups, down = part.ups, part.down
    names = ("weight",) if down.bias is None else ("weight", "bias")
    return [
        (f"{place}.{name}", [layer.get_parameter(name) for layer in layers])
        for name in names
        for place, layers in (("up", ups), ("down", (down,)))
    ]


def _copies(
    part: FeedForwardPart,
    sizes: MixtureSizes,
    noise: float,
    scale: float,
    generator: torch.Generator,
) -> ExpertWeights:
    def made(tensors: Sequence[torch.Tensor], factor: float = 1.0) -> torch.Tensor:
        whole = torch.cat([tensor.detach() for tensor in tensors]) * factor
        copies = whole.repeat(sizes.num_experts, *(1 for _ in whole.shape))
        if noise and whole.ndim > 1:
            drawn = torch.randn(copies[1:].shape, generator=generator).to(whole.dtype)
            copies[1:] += drawn * (noise * float(whole.float().std()))
        return copies

    ups, down = part.ups, part.down
    width = ups[0].in_features
    router = torch.randn(sizes.num_experts, width, generator=generator) * _ROUTER_STD
    biases = [layer.bias for layer in ups if layer.bias is not None]
    return ExpertWeights(
        made([layer.weight for layer in ups]),
        made([down.weight], scale),
        router.to(down.weight.dtype),
        made(biases) if biases else None,
        None if down.bias is None else made([down.bias], scale),
    )


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        return
    check_growable(optimizer, {p: name for name, p in model.named_parameters()}, is_kept=True)
    groups = optimizer.param_groups
    halves = any(p.dtype.itemsize < 4 for group in groups for p in group["params"])
    is_small = isinstance(optimizer, SmallStateOptimizer)
    if is_small and (halves or any(group["moments"] == "8bit" for group in groups)):
        raise InputError(
            "upcycle: the optimizer holds 8-bit moments or split masters, which cannot be joined"
            " from several parameters. Upcycle with moments: fp32 and float32 weights."
        )


def _follow(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    old: Sequence[list[tuple[str, list[nn.Parameter]]]],
    sizes: MixtureSizes,
) -> None:
    """Let the optimizer hold experts and routers in the place of the parts they were made of."""
    homes = {p: group for group in optimizer.param_groups for p in group["params"]}
    for layer, parts in zip(mixtures_of(model), old, strict=True):
        fresh: dict[str, nn.Parameter] = dict(layer.up.named_parameters(prefix="up"))
        fresh |= layer.down.named_parameters(prefix="down")
        for name, sources in parts:
            home = homes.get(sources[0])
            if home is None:
                fresh[name].requires_grad_(sources[0].requires_grad)
                continue
            if any(homes.get(source) is not home for source in sources):
                raise InputError(
                    f"upcycle: the parts of {layer.name}'s {name} are in different groups of the"
                    " optimizer, and become one parameter. Put them into one group."
                )
            places = {id(source): None for source in sources} | {id(sources[0]): fresh[name]}
            held = [places.get(id(p), p) for p in home["params"]]
            home["params"] = [p for p in held if p is not None]
            state = _grown(optimizer, sources, sizes)
            for source in sources:
                optimizer.state.pop(source, None)
            if state:
                optimizer.state[fresh[name]] = state
        home = homes.get(parts[0][1][0])
        if home is not None:
            inside = {id(p) for p in layer.experts.parameters()}
            others = model.get_submodule(layer.name).parameters()
            home["params"] += [router for router in others if id(router) not in inside]


def _grown(
    optimizer: torch.optim.Optimizer, sources: Sequence[nn.Parameter], sizes: MixtureSizes
) -> dict[str, Any]:
    states = [optimizer.state.get(source, {}) for source in sources]
    if not all(states):
        return {}
    count = sizes.num_experts
    factors = {"mean": 1 / count, "square": 1 / (count * sizes.top_k), "step": 1.0}
    result: dict[str, Any] = {}
    for key, value in states[0].items():
        if is_scalar(value):
            result[key] = value.clone() if isinstance(value, torch.Tensor) else value
        elif value.shape != sources[0].shape:
            raise InputError(
                f"upcycle: {type(optimizer).__name__} keeps {key!r} in another shape than the"
                " parameter, which cannot be spread over experts. Use AdamW, SGD, LAMB or LARS."
            )
        else:
            factor = factors[quantity_of(optimizer, key)]
            whole = torch.cat([state[key] for state in states]) * factor
            result[key] = torch.cat([whole] * count)
    return result
