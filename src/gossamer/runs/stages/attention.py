# SPDX-License-Identifier: Apache-2.0
"""One `attention` stage of a recipe: attention layers are given a pattern."""

from typing import Any

import torch
from torch import nn

from gossamer.nn.attention import replace_attention
from gossamer.patterns.attention import parse_attention
from gossamer.pruning.targets import match
from gossamer.recipes.stages.attention import Attention
from gossamer.runs.stages.base import StageInput, StageOutcome


def run_attention_stage(model: nn.Module, step: Attention, given: StageInput) -> StageOutcome:
    """Change `model` in place."""
    modules = {name: module for name, module in model.named_modules() if name}
    ignored = {
        name for rule in step.ignore or () for name in match(rule, modules, "attention.ignore")
    }
    kept_out = tuple(f"{name}." for name in ignored)
    names = replace_attention(
        model, step.pattern, layers=lambda name: not f"{name}.".startswith(kept_out)
    )
    notes = [
        f"attention: {len(names)} layers attend to '{step.pattern}'"
        f"{_share(model.get_submodule(names[0]), step.pattern, given)}.",
        "attention: this changes what a trained model computes. Train it on (recover), and measure"
        " its quality on texts of the length that you use.",
    ]
    return StageOutcome(notes)


def _share(layer: Any, pattern: str, given: StageInput) -> str:
    """What is computed of samples as long as those of the data; empty without data."""
    tokens = _tokens(given)
    if not tokens:
        return ""
    causal = bool(getattr(layer, "causal", getattr(layer, "is_causal", True)))
    parsed = parse_attention(pattern)
    found, full = (
        one.blocks(tokens, heads=len(parsed.groups), causal=causal)
        for one in (parsed, parse_attention("full"))
    )
    pairs, blocks = found.density / full.density, found.block_density / full.block_density
    return (
        f": of samples of {tokens} tokens {pairs:.1%} of the pairs, in {blocks:.1%} of the blocks"
        " of 64 x 64"
    )


def _tokens(given: StageInput) -> int:
    """Tokens of the first sample; 0 if there is none, or if its length cannot be told."""
    for batch in (given.batches or ())[:1]:
        arguments: Any = batch.arguments
        values = arguments.values() if isinstance(arguments, dict) else [arguments]
        for value in values:
            first = value[0] if isinstance(value, tuple) and value else value
            if isinstance(first, torch.Tensor) and first.ndim > 1:
                return int(first.shape[1])
    return 0
