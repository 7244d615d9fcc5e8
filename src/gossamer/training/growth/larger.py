# SPDX-License-Identifier: Apache-2.0
"""The larger model: built by its own class from larger settings, with fresh weights."""

import copy
from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_weights import shape_of
from gossamer.nn.surgery.matrix_layers import conv1d_paths, conv1d_to_linear, stores_transposed
from gossamer.training.checkpoint.random_state import seed_all, undisturbed_random
from gossamer.training.growth.plan import GrowthPlan
from gossamer.training.growth.roles import Anatomy


def built_larger(model: nn.Module, plan: GrowthPlan) -> nn.Module:
    """A model of the same class with larger settings; its weights are those of a fresh one."""
    anatomy, factors, facts = plan.anatomy, plan.factors, plan.anatomy.facts
    before, settings = anatomy.settings, dict(anatomy.settings)
    copies = dict.fromkeys(facts.width, factors.stream) | {
        facts.heads: factors.heads,
        facts.kv_heads: factors.heads * factors.spread,
        facts.ffn: factors.ffn,
    }
    for name, factor in copies.items():
        if before.get(name) is not None:
            settings[name] = int(before[name]) * factor
    if before.get(facts.ffn) is None and factors.ffn != factors.stream:
        settings[facts.ffn] = _ffn_width(model, anatomy) * factors.ffn
    if facts.head_dim and factors.heads != factors.stream:
        settings[facts.head_dim] = factors.head_dim
    if facts.vocabulary:
        settings[facts.vocabulary] = int(before[facts.vocabulary]) + factors.vocabulary
    if facts.layers:
        settings[facts.layers] = len(plan.sources)
    for name in facts.per_layer:
        entries = before.get(name)
        if isinstance(entries, list) and entries:
            settings[name] = [entries[source.layer or 0] for source in plan.sources]
    with undisturbed_random():
        seed_all(plan.growth.seed)
        larger = _built(model, settings)
    if not conv1d_paths(model) and conv1d_paths(larger):
        conv1d_to_linear(larger)
    return larger.train(model.training)


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
