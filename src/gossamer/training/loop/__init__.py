# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, batches by number, evaluation, and the moment of compaction.

Start with `Loop` and `LoopSettings`. `Surroundings` says what a run reports to, `Control` is what
the loop asks of a sparsity schedule, `Processes` is who carries out the steps.
"""

from gossamer.training.loop.control import Control
from gossamer.training.loop.endings import TrainingStopped, memory_for
from gossamer.training.loop.loop import Loop
from gossamer.training.loop.processes import Processes
from gossamer.training.loop.run import Objective, Progress, Surroundings, TrainingRun
from gossamer.training.loop.settings import Compaction, LearningRate, LoopSettings

__all__ = [
    "Compaction",
    "Control",
    "LearningRate",
    "Loop",
    "LoopSettings",
    "Objective",
    "Processes",
    "Progress",
    "Surroundings",
    "TrainingRun",
    "TrainingStopped",
    "memory_for",
]
