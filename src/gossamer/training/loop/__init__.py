# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, batches by number, evaluation, and the moment of compaction.

Start with `Loop` and `LoopSettings`, which have a `LearningRate`. A `TrainingRun` is what it trains
by which `Objective`; `Surroundings` say what a run reports to, as `Progress`; `Control` is what the
loop asks of a sparsity schedule. `settings` has the rest of the settings, `processes` who carries
out the steps, `endings` how a run ends before its time.
"""

from gossamer.training.loop.loop import Loop
from gossamer.training.loop.run import Control, Objective, Progress, Surroundings, TrainingRun
from gossamer.training.loop.settings import LearningRate, LoopSettings

__all__ = [
    "Control",
    "LearningRate",
    "Loop",
    "LoopSettings",
    "Objective",
    "Progress",
    "Surroundings",
    "TrainingRun",
]
