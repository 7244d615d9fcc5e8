# SPDX-License-Identifier: Apache-2.0
"""What each stage of a recipe says, as data: fields and rules, without torch.

A stage is a class in a file of its own, a `StageSettings`, and a field of `Stage` in
`recipes/schema.py`. What it does is in `gossamer.runs.stages`. `train` has sections and a room of
its own; so have `schedules`, one class each, and `mixtures`, what makes experts or takes some out.
"""

from gossamer.recipes.base import StageSettings
from gossamer.recipes.stages.prune import Prune
from gossamer.recipes.stages.recover import Recover
from gossamer.recipes.stages.relufy import Relufy
from gossamer.recipes.stages.round import Round
from gossamer.recipes.stages.structured import Structured
from gossamer.recipes.stages.tokens import Tokens
from gossamer.recipes.stages.train import Train

__all__ = [
    "Prune",
    "Recover",
    "Relufy",
    "Round",
    "StageSettings",
    "Structured",
    "Tokens",
    "Train",
]
