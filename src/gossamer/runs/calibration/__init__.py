# SPDX-License-Identifier: Apache-2.0
"""From a user's file of texts to calibration batches, and a measure of quality for one model.

`calibration_batches` draws what a recipe asks for, `pair_loss` makes a loss of scored pairs, and
`quality_of` finds the `Quality` that suits a model. `embed` gives a model's vectors, `agreement`
says how far two models find the same sentences alike.
"""

from gossamer.runs.calibration.quality import agreement, embed
from gossamer.runs.calibration.texts import Quality, calibration_batches, pair_loss, quality_of

__all__ = [
    "Quality",
    "agreement",
    "calibration_batches",
    "embed",
    "pair_loss",
    "quality_of",
]
