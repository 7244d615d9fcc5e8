# SPDX-License-Identifier: Apache-2.0
"""One `round` stage of a recipe."""

from torch import nn

from gossamer.nn.rounding import ROUNDINGS, can_round, round_layer
from gossamer.pruning.targets import match
from gossamer.recipes.stages import Round
from gossamer.runs.stages.base import StageInput, StageOutcome
from gossamer.runs.stages.round_tables import round_tables


def run_round_stage(model: nn.Module, step: Round, given: StageInput) -> StageOutcome:
    """Round `model` in place."""
    modules = {name: module for name, module in model.named_modules() if name}
    ignored = {name for rule in step.ignore or () for name in match(rule, modules, "round.ignore")}
    seen: set[int] = set()
    counts = dict.fromkeys(ROUNDINGS, 0)
    # First: they may be refused, and then nothing has changed.
    tables = round_tables(model, step, ignored, given)
    for name, module in modules.items():
        is_table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        to = step.embeddings if is_table else step.layers
        if to is None or name in ignored or not can_round(module):
            continue
        # A weight that is tied is rounded once, as what it is met as first.
        weights = {id(parameter) for key, parameter in module._parameters.items() if key != "bias"}
        if not weights & seen:
            round_layer(module, to)
            counts[to] += 1
        seen |= weights
    parts = [tables] if tables else []
    parts += [f"{count} layers to {to}" for to, count in counts.items() if count]
    return StageOutcome([f"rounded {', '.join(parts) or 'nothing: no layer was found'}."])
