# SPDX-License-Identifier: Apache-2.0
"""Pruning with data: batches flow through a model and stop in front of every layer.

Start with `CalibratedPruning`, which solves one layer after the other while the batches of
`as_batches` flow (`stops`). `Statistics` are what a method knows of a layer's inputs, a `Journal`
remembers solved layers, and `evaluating`, `frozen`, `kept_flags` and `hooked` leave a model as it
was after a look at it.
"""

from gossamer.pruning.calibration.calibrated import (
    CalibratedPruning,
    Journal,
    LayerProgress,
    LiveBytes,
    check_all_met,
    check_inside,
    met_targets,
    problem_of,
)
from gossamer.pruning.calibration.flow import (
    as_batches,
    evaluating,
    frozen,
    hooked,
    kept_flags,
    stops,
)
from gossamer.pruning.calibration.journal import (
    DiskJournal,
    check_same_run,
    data_digest,
    model_digest,
)
from gossamer.pruning.calibration.statistics import Statistics, collect_inputs, gram

__all__ = [
    "CalibratedPruning",
    "DiskJournal",
    "Journal",
    "LayerProgress",
    "LiveBytes",
    "Statistics",
    "as_batches",
    "check_all_met",
    "check_inside",
    "check_same_run",
    "collect_inputs",
    "data_digest",
    "evaluating",
    "frozen",
    "gram",
    "hooked",
    "kept_flags",
    "met_targets",
    "model_digest",
    "problem_of",
    "stops",
]
