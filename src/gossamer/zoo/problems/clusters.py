# SPDX-License-Identifier: Apache-2.0
"""Synthetic problems that are learned in seconds and are not trivial.

Everything is drawn from an explicit generator: the same seed gives the same problem.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError


@dataclass(frozen=True)
class Split:
    """Inputs and labels for training and for testing, drawn from one distribution."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


_FEATURES, _CLASSES, _CLUSTERS, _NOISE = 64, 8, 8 * 16, 0.11


def cluster_problem(
    generator: torch.Generator, *, num_train: int = 8192, num_test: int = 1024
) -> Split:
    """Classes that are unions of Gaussian clusters around random directions.

    Each class owns several clusters far from each other, so a linear classifier confuses classes
    while a network with one hidden layer separates them almost perfectly.

    Returns:
        x float32 [num, 64], y int64 [num], one of 8 classes.
    """
    for name, value in (("num_train", num_train), ("num_test", num_test)):
        if value < 1:
            raise InputError(f"{name}: must be at least 1, got {value}.")
    centres = torch.randn(_CLUSTERS, _FEATURES, generator=generator)
    centres = centres / centres.norm(dim=1, keepdim=True)
    num_samples = num_train + num_test
    cluster = torch.randint(_CLUSTERS, (num_samples,), generator=generator)
    jitter = torch.randn(num_samples, _FEATURES, generator=generator)
    # Scaled to unit variance per feature, as inputs of a network usually are.
    x = (centres[cluster] + _NOISE * jitter) * (_FEATURES / (1 + _NOISE**2 * _FEATURES)) ** 0.5
    y = cluster % _CLASSES
    return Split(x[:num_train], y[:num_train], x[num_train:], y[num_train:])


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of rows whose largest logit is the label."""
    return float((logits.argmax(dim=-1) == labels).float().mean())
