# SPDX-License-Identifier: Apache-2.0
"""AUC, log loss, normalised entropy and calibration against their definitions in float64."""

import math

import pytest
import torch

from gossamer.data.clicks import click_metrics
from gossamer.errors import InputError


def test_definitions():
    logits = torch.tensor([0.0, 2.0, -1.0, 0.5, 0.5])
    labels = torch.tensor([0, 1, 0, 1, 0])
    chances = [1 / (1 + math.exp(-z)) for z in logits.tolist()]
    loss = (
        -sum(math.log(p if y else 1 - p) for p, y in zip(chances, labels.tolist(), strict=True)) / 5
    )
    entropy = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))
    found = click_metrics(logits, labels)
    assert list(found) == ["auc", "eval_loss", "normalised_entropy", "calibration"]
    assert found["auc"] == pytest.approx(5.5 / 6)
    assert found["eval_loss"] == pytest.approx(loss, rel=1e-12)
    assert found["normalised_entropy"] == pytest.approx(loss / entropy, rel=1e-12)
    assert found["calibration"] == pytest.approx(sum(chances) / 2, rel=1e-12)


def test_the_mean_rate_has_an_entropy_of_one_and_is_calibrated():
    labels = torch.tensor([1, 0, 0, 0])
    found = click_metrics(torch.full((4,), math.log(1 / 3), dtype=torch.float64), labels)
    assert found["normalised_entropy"] == pytest.approx(1)
    assert found["calibration"] == pytest.approx(1)
    assert found["auc"] == 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_with_one_class_only_the_loss_is_defined(label):
    found = click_metrics(torch.tensor([0.0, 100.0, -100.0]), torch.full((3,), label))
    assert list(found) == ["eval_loss"]
    assert found["eval_loss"] == pytest.approx((math.log(2) + 100) / 3)


def test_nothing_and_no_numbers_are_refused():
    with pytest.raises(InputError, match="no row"):
        click_metrics(torch.zeros(0), torch.zeros(0))
    with pytest.raises(InputError, match="NaN or infinite"):
        click_metrics(torch.tensor([math.nan, 1]), torch.tensor([0, 1]))
