# SPDX-License-Identifier: Apache-2.0
"""When schedules act, against the figures of the papers."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import gossamer
from gossamer.pruning.schedules import Window
from gossamer.pruning.schedules.base import cosine, cubic, generator
from gossamer.pruning.schedules.magnitude import phases


@pytest.mark.parametrize(("progress", "share"), [(0, 0), (0.25, 0.578125), (0.5, 0.875), (1, 1)])
def test_the_cubic_ramp_is_the_published_one(progress, share):
    assert cubic(0.0, 0.9, progress) == pytest.approx(0.9 * share, abs=1e-12)
    assert cubic(0.05, 0.9, progress) == pytest.approx(0.05 + 0.85 * share, abs=1e-12)


def test_the_cosine_falls_from_the_first_value_to_nothing():
    assert cosine(0.3, 0.0) == 0.3
    assert cosine(0.3, 0.5) == pytest.approx(0.15)
    assert cosine(0.3, 1.0) == 0.0


@pytest.mark.parametrize(
    ("window", "steps"),
    [
        (Window(10, 40, 10), [10, 20, 30, 40]),
        (Window(10, 35, 10), [10, 20, 30, 35]),
        (Window(0, 3, 100), [0, 3]),
        (Window(7, 7, 5), [7]),
    ],
)
def test_a_window_acts_at_its_steps_and_at_its_end(window, steps):
    assert [step for step in range(60) if window.holds(step)] == steps
    assert window.progress(window.end) == 1.0
    assert window.progress(0) in (0.0, 1.0)


def test_the_published_hundred_epochs_of_acdc():
    found = phases(10, 5, 75, 85)
    sparse = [step for step, kind in found.items() if kind == "sparse"]
    dense = [step for step, kind in found.items() if kind == "dense"]
    assert sparse == [10, 20, 30, 40, 50, 60, 70, 85]
    assert dense == [15, 25, 35, 45, 55, 65, 75]


@pytest.mark.parametrize("phase", [1, 3, 7, 100])
def test_acdc_phases_alternate_and_end_sparse(phase):
    found = phases(5, phase, 50, 60)
    assert list(found) == sorted(found)
    kinds = list(found.values())
    assert kinds[-1] == "sparse"
    assert all(a != b for a, b in pairwise(kinds))


def test_random_numbers_depend_on_seed_layer_and_step_only():
    def drawn(*source):
        return torch.rand((3, 4), generator=generator(*source), dtype=torch.float64)

    first = drawn(1, "a.b", 5)
    assert torch.equal(first, drawn(1, "a.b", 5))
    for other in [(2, "a.b", 5), (1, "a.c", 5), (1, "a.b", 6)]:
        assert not torch.equal(first, drawn(*other))
    assert 0 <= generator(2**62, "x" * 1000, 10**9).initial_seed() < 2**63


def test_random_scores_are_positive_and_finite_so_that_every_weight_can_be_kept():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"kind": "random", "sparsity": 0.5, "seed": 3}
    control = gossamer.attach(model, settings, optimizer, total_steps=1)
    for layer, scores in zip(model, control._schedule.random_scores(0), strict=True):
        assert scores.shape == layer.weight.shape
        assert bool((scores.isfinite() & (scores > 0) & (scores <= 1 + 1e-12)).all())
