# SPDX-License-Identifier: Apache-2.0
"""Experts in the place of the feed-forward parts of a dense model.

Legend: E experts, D width, F inner features of one expert, R rows in front of the activation.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers, family_of
from gossamer.nn.surgery.mixtures.rebuilt import become

# A `MixtureFacts` of the family table.
Facts = Any


@dataclass(frozen=True)
class MixtureSizes:
    """How large the mixtures of a model are.

    Attributes:
        num_experts: E.
        top_k: experts of a token.
        ffn_width: F.
        shared_width: inner features that every token has besides; 0: none.
    """

    num_experts: int
    top_k: int
    ffn_width: int
    shared_width: int = 0

    def __post_init__(self) -> None:
        if self.num_experts < 1 or not 1 <= self.top_k <= self.num_experts:
            raise InputError(
                f"experts: top_k must be in [1, {self.num_experts}], the number of experts, got"
                f" {self.top_k}."
            )


@dataclass(frozen=True)
class ExpertWeights:
    """What stands in the place of one feed-forward part.

    Attributes:
        up: [E, R, D].
        down: [E, D, F].
        router: [E, D].
        up_bias: [E, R] or None.
        down_bias: [E, D] or None.
        shared: gate, up [F', D] and down [D, F'] of the part that every token has; empty: none.
    """

    up: torch.Tensor
    down: torch.Tensor
    router: torch.Tensor
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    shared: tuple[torch.Tensor, ...] = ()


def mixture_class(model: nn.Module, *, shared: bool) -> Facts:
    """The class that a dense model becomes, with or without a part that every token has."""
    family = family_of(model, "mixtures")
    choices: tuple[Facts, ...] = answers("mixtures")[family] if family else ()
    for facts in choices:
        if bool(facts.shared) == shared:
            return facts
    what = "with experts that every token has" if shared else "with routed experts only"
    raise TargetError(f"{type(model).__name__}: its family has no class {what}.")


def become_mixture(
    model: nn.Module, sizes: MixtureSizes, weights: Mapping[str, ExpertWeights]
) -> None:
    """Put experts in the place of feed-forward parts; the model changes its class, in place.

    Args:
        model: dense, of a family that says how; see `feed_forwards`.
        sizes: of all mixtures.
        weights: of each block, by its name.
    """
    facts = mixture_class(model, shared=sizes.shared_width > 0)
    numbers: dict[str, torch.Tensor] = {}
    for block, made in weights.items():
        prefix = f"{block}." if block else ""
        numbers[f"{prefix}{facts.up}.weight"] = made.up.flatten(0, 1)
        numbers[f"{prefix}{facts.down}.weight"] = made.down.flatten(0, 1)
        numbers[f"{prefix}{facts.router}.weight"] = made.router
        for path, bias in ((facts.up, made.up_bias), (facts.down, made.down_bias)):
            if bias is not None:
                numbers[f"{prefix}{path}.bias"] = bias.flatten()
        if made.shared:
            gate, up, down = made.shared
            numbers[f"{prefix}{facts.shared}.gate_proj.weight"] = gate
            numbers[f"{prefix}{facts.shared}.up_proj.weight"] = up
            # The sigmoid of 0 is a half, so that what it multiplies is doubled: exact in binary.
            numbers[f"{prefix}{facts.shared}.down_proj.weight"] = 2 * down
            numbers[f"{prefix}{facts.shared_gate}.weight"] = gate.new_zeros(1, gate.shape[1])
    own: Any = model
    settings = {facts.count: sizes.num_experts, facts.top_k: sizes.top_k, **facts.fixed}
    settings[facts.width] = sizes.ffn_width
    if sizes.shared_width:
        settings[facts.shared_width] = sizes.shared_width
    module = importlib.import_module(facts.module)
    if not hasattr(own, "config"):
        kind = getattr(module, facts.prefix)
        arguments = {**own.zoo_args(), **settings}
        _numbers_of_routers(numbers, weights, facts)
        become(model, lambda: kind(**arguments), numbers)
        return
    configuration = _configuration(own, facts, settings, getattr(module, f"{facts.prefix}Config"))
    name = type(model).__name__.replace(_prefix(model), facts.prefix, 1)
    kind = getattr(module, name, None)
    if kind is None:
        raise TargetError(f"{type(model).__name__}: transformers has no {name} to make of it.")
    become(model, lambda: kind(configuration), numbers)


def _prefix(model: nn.Module) -> str:
    prefix: str = answers("classes")[family_of(model, "mixtures") or ""].prefix
    if not type(model).__name__.startswith(prefix):
        raise TargetError(
            f"{type(model).__name__}: holds {prefix} blocks, but is no class of transformers. Give"
            " that model itself."
        )
    return prefix


def _configuration(model: Any, facts: Facts, settings: Mapping[str, Any], kind: type[Any]) -> Any:
    """What the class with experts knows of the dense model's settings, and those of experts."""
    dense = model.config.to_dict()
    for name, needed in facts.needs.items():
        found = dense.get(name, needed)
        if found != needed:
            raise TargetError(
                f"{type(model).__name__}: has {name} = {found!r}, and {facts.prefix} layers know"
                f" only {needed!r}, so it cannot get experts."
            )
    known = kind().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    kept = {name: value for name, value in dense.items() if name in known}
    configuration = kind(**{**kept, **settings})
    configuration._attn_implementation = model.config._attn_implementation
    return configuration


def _numbers_of_routers(
    numbers: dict[str, torch.Tensor], weights: Mapping[str, ExpertWeights], facts: Facts
) -> None:
    """Loads and offsets of our own routers, which are empty unless a bias keeps the balance."""
    for block, made in weights.items():
        prefix = f"{block}." if block else ""
        numbers[f"{prefix}{facts.router}.load"] = torch.zeros(0, dtype=torch.int64)
        numbers[f"{prefix}{facts.router}.offsets"] = made.router.new_zeros(0, dtype=torch.float32)
