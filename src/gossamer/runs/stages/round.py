# SPDX-License-Identifier: Apache-2.0
"""One `round` stage of a recipe."""

from torch import nn

from gossamer.nn.rounding import ROUNDINGS, can_round, round_layer
from gossamer.pruning.targets import match
from gossamer.recipes.stages import Round
from gossamer.runs.stages.base import StageInput, StageOutcome


def run_round_stage(model: nn.Module, step: Round, given: StageInput) -> StageOutcome:
    """Round `model` in place."""
    modules = {name: module for name, module in model.named_modules() if name}
    ignored = {name for rule in step.ignore or () for name in match(rule, modules, "round.ignore")}
    seen: set[int] = set()
    counts = dict.fromkeys(ROUNDINGS, 0)
    for name, module in modules.items():
        to = step.embeddings if isinstance(module, nn.Embedding) else step.layers
        if to is None or name in ignored or not can_round(module):
            continue
        # A weight that is tied is rounded once, as what it is met as first.
        weights = {id(parameter) for key, parameter in module._parameters.items() if key != "bias"}
        if not weights & seen:
            round_layer(module, to)
            counts[to] += 1
        seen |= weights
    done = ", ".join(f"{count} layers to {to}" for to, count in counts.items() if count)
    return StageOutcome([f"rounded {done or 'nothing: no layer was found'}."])
