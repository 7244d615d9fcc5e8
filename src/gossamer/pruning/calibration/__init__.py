# SPDX-License-Identifier: Apache-2.0
"""Pruning with data: layers are solved one after the other while batches flow through the model.

Start with `CalibratedPruning`; it tells its `LayerProgress`, remembers solved layers in a `Journal`
and counts the `LiveBytes` that it holds. `problem_of` is what a solver gets for a layer;
`met_targets` and `check_all_met` ask which layers the batches reach.

`flow` lets batches stop in front of every layer and leaves the model as it was, `statistics` are
what a method knows of a layer's inputs, `journal` keeps solved layers on disk.
"""

from gossamer.pruning.calibration.calibrated import (
    CalibratedPruning,
    Journal,
    LayerProgress,
    LiveBytes,
    check_all_met,
    met_targets,
    problem_of,
)

__all__ = [
    "CalibratedPruning",
    "Journal",
    "LayerProgress",
    "LiveBytes",
    "check_all_met",
    "met_targets",
    "problem_of",
]
