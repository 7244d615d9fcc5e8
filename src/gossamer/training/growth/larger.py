# SPDX-License-Identifier: Apache-2.0
"""The larger model: built by its own class from larger settings, with fresh weights."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import shape_of
from gossamer.nn.surgery.slimming import conv1d_paths, conv1d_to_linear
from gossamer.nn.surgery.slimming.matrix_layer import stores_transposed
from gossamer.training.checkpoint import seed_all, undisturbed_random
from gossamer.training.growth.roles import Anatomy
from gossamer.training.growth.tensors import Factors

Where = Literal["after", "top", "bottom"]


@dataclass(frozen=True)
class LayerSource:
    """Where a block of the larger model comes from.

    Attributes:
        layer: number of the old block; None if there is none to copy.
        is_new: whether the old block itself has another place.
    """

    layer: int | None
    is_new: bool


def layer_sources(before: int, after: int, where: Where) -> tuple[LayerSource, ...]:
    """The blocks of the larger model in order; InputError if it would have fewer."""
    if after < before:
        raise InputError(f"grow: {after} layers are fewer than the {before} that there are.")
    if not before:
        return (LayerSource(None, True),) * after
    extra = after - before
    if where != "after":
        old = tuple(LayerSource(layer, False) for layer in range(before))
        new = tuple(LayerSource(layer % before, True) for layer in range(extra))
        return old + new if where == "top" else new + old
    found: list[LayerSource] = []
    for layer in range(before):
        found.append(LayerSource(layer, False))
        # As even as can be: the first blocks get one more.
        number = extra // before + (layer < extra % before)
        found += [LayerSource(layer, True)] * number
    return tuple(found)


def built_larger(
    model: nn.Module,
    anatomy: Anatomy,
    factors: Factors,
    sources: tuple[LayerSource, ...],
    seed: int,
) -> nn.Module:
    """A model of the same class with larger settings; its weights are those of a fresh one."""
    settings, facts = settings_of(model), anatomy.facts

    def scale(name: str, factor: int) -> None:
        value = settings.get(name)
        if name and value is not None:
            settings[name] = int(value) * factor

    before = dict(settings)
    for name in facts.width:
        scale(name, factors.stream)
    scale(facts.heads, factors.query)
    scale(facts.kv_heads, factors.key * factors.spread)
    scale(facts.ffn, factors.ffn)
    if before.get(facts.ffn) is None and factors.ffn != factors.stream:
        settings[facts.ffn] = _ffn_width(model, anatomy) * factors.ffn
    if facts.head_dim and factors.query != factors.stream:
        settings[facts.head_dim] = factors.head_dim
    settings[facts.vocabulary] = int(before[facts.vocabulary]) + factors.vocabulary
    settings[facts.layers] = len(sources)
    for name in facts.per_layer:
        entries = before.get(name)
        if isinstance(entries, list) and entries:
            settings[name] = [entries[source.layer or 0] for source in sources]
    with undisturbed_random():
        seed_all(seed)
        larger = _built(model, settings)
    if not conv1d_paths(model) and conv1d_paths(larger):
        conv1d_to_linear(larger)
    return larger.train(model.training)


def settings_of(model: nn.Module) -> dict[str, Any]:
    """The settings of a model by name: arguments of a zoo model, or fields of a configuration."""
    if hasattr(model, "zoo_args"):
        zoo_args: Any = model.zoo_args
        return dict(zoo_args())
    config: Any = getattr(model, "config", None)
    if config is None:
        raise InputError(
            f"grow: a {type(model).__name__} says neither by zoo_args() nor by a config how it is"
            " built. Unwrap it first if it is compiled or wrapped."
        )
    return {name: getattr(config, name) for name in vars(config)}


def _built(model: nn.Module, settings: dict[str, Any]) -> nn.Module:
    made: Any = type(model)
    if hasattr(model, "zoo_args"):
        larger: nn.Module = made(**settings)
    else:
        config = copy.deepcopy(model.config)
        for name, value in settings.items():
            setattr(config, name, value)
        larger = made(config)
    # What a model carries besides its settings.
    for name in ("recompute", "generation_config"):
        if name in vars(model):
            setattr(larger, name, copy.deepcopy(getattr(model, name)))
    return larger


def _ffn_width(model: nn.Module, anatomy: Anatomy) -> int:
    if not anatomy.num_layers:
        raise InputError("grow: a model without layers has no feed-forward part to widen.")
    down = model.get_submodule(f"{anatomy.layers}.0.{anatomy.block.down}")
    return shape_of(down)[0 if stores_transposed(down) else 1]
