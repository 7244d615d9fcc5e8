# SPDX-License-Identifier: Apache-2.0
"""What each stage of a recipe says, as data: fields and rules, without torch.

A stage is a class in a file of its own and a field of `gossamer.recipes.Stage`; a schedule is a
class in `schedules.py`. What a stage does is in `gossamer.runs.stages`. `Train` has sections:
`Architecture`, `OptimizerSettings`, `CheckpointSettings`, `Mesh`.
"""

from gossamer.recipes.stages.base import StageSettings, read_pattern
from gossamer.recipes.stages.mesh import Mesh
from gossamer.recipes.stages.prune import Prune
from gossamer.recipes.stages.recover import Recover
from gossamer.recipes.stages.relufy import Relufy
from gossamer.recipes.stages.round import Round
from gossamer.recipes.stages.schedules import (
    SCHEDULES,
    IterativeSettings,
    ScheduleSettings,
    WindowSettings,
    step_of,
)
from gossamer.recipes.stages.structured import Structured
from gossamer.recipes.stages.tokens import Tokens
from gossamer.recipes.stages.train import (
    Architecture,
    CheckpointSettings,
    OptimizerSettings,
    Train,
)

__all__ = [
    "SCHEDULES",
    "Architecture",
    "CheckpointSettings",
    "IterativeSettings",
    "Mesh",
    "OptimizerSettings",
    "Prune",
    "Recover",
    "Relufy",
    "Round",
    "ScheduleSettings",
    "StageSettings",
    "Structured",
    "Tokens",
    "Train",
    "WindowSettings",
    "read_pattern",
    "step_of",
]
