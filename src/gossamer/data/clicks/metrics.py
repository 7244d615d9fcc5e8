# SPDX-License-Identifier: Apache-2.0
"""How good chances of clicks are: AUC, log loss, normalised entropy, calibration; in float64."""

import math

import torch
from torch.nn.functional import softplus

from gossamer.errors import InputError
from gossamer.zoo.problems import weighted_auc


def click_metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Numbers of a model on rows whose labels are known.

    - `auc`: the chance that a click is ranked above a row without one; ties count half.
    - `eval_loss`: log loss, the mean negative logarithm of the chance of what happened.
    - `normalised_entropy`: log loss as a part of what the mean rate alone would give; below 1.
    - `calibration`: predicted clicks as a part of those that happened; 1 is right.

    Where all labels are the same, only `eval_loss` is defined, and only it is given.

    Args:
        logits: [N], finite.
        labels: [N], 0 or 1.
    """
    if not len(logits):
        raise InputError("clicks: there is no row to measure on.")
    z, y = logits.detach().double(), labels.double()
    if not bool(torch.isfinite(z).all()):
        raise InputError("clicks: the model gives logits that are NaN or infinite.")
    loss = float((softplus(z) - z * y).mean())
    rate = float(y.mean())
    if rate in (0.0, 1.0):
        return {"eval_loss": loss}
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    return {
        "auc": weighted_auc(z, y, 1 - y),
        "eval_loss": loss,
        "normalised_entropy": loss / entropy,
        "calibration": float(torch.sigmoid(z).mean()) / rate,
    }
