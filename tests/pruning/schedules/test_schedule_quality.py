# SPDX-License-Identifier: Apache-2.0
"""Schedules in the order they should come in: a sparse teacher, and students that look for it."""

import statistics

import pytest
import torch
from torch import nn

import gossamer

WIDTH = 64


def teacher(seed):
    """Two hidden layers of width 64, nine of ten weights zero."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for _ in range(3):
        weight = torch.randn(WIDTH, WIDTH, generator=generator)
        keep = torch.rand(WIDTH, WIDTH, generator=generator) < 0.1
        weights.append(torch.where(keep, weight, 0.0) / (0.1 * WIDTH) ** 0.5 * 1.4)

    def run(x):
        for number, weight in enumerate(weights):
            x = x @ weight.T
            x = x.relu() if number < 2 else x
        return x

    return run


def student_loss(kind, sparsity, seed, samples, steps, **settings):
    """Test loss over the variance of the targets."""
    truth = teacher(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(samples, WIDTH, generator=generator)
    y = truth(x)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.0, fused=True)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    ctl = None
    if kind != "dense":
        given = {"kind": kind, "sparsity": sparsity, "seed": seed, **settings}
        ctl = gossamer.attach(model, given, optimizer, total_steps=steps)
    for _ in range(steps):
        index = torch.randint(0, samples, (128,), generator=generator)
        optimizer.zero_grad()
        loss = (model(x[index]) - y[index]).square().mean()
        extra = None if ctl is None else ctl.penalty()
        (loss if extra is None else loss + extra).backward()
        optimizer.step()
        rates.step()
        if ctl is not None:
            ctl.step()
    test = torch.randn(4000, WIDTH, generator=generator)
    with torch.inference_mode():
        wanted = truth(test)
        return float((model(test) - wanted).square().mean() / wanted.var())


def mean_loss(kind, sparsity, seeds, samples=8000, steps=800, **settings):
    losses = [student_loss(kind, sparsity, s, samples, steps, **settings) for s in range(seeds)]
    return statistics.mean(losses)


def test_moving_masks_beat_a_random_one_at_90_percent():
    static = mean_loss("random", 0.9, 1, steps=300)
    for kind, settings in (("gradual", {}), ("rigl", {"every": 10, "end": 0.75}), ("acdc", {})):
        assert mean_loss(kind, 0.9, 1, steps=300, **settings) < 0.95 * static, kind


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sparsity", [0.9, 0.95])
def test_the_order_of_the_family(sparsity):
    """Means of five seeds, independent inputs."""
    kinds = ("dense", "gradual", "acdc", "rigl", "set", "topkast", "random")
    loss = {kind: mean_loss(kind, sparsity, 5, steps=1000) for kind in kinds}
    assert loss["dense"] <= min(loss["gradual"], loss["acdc"]), loss
    assert max(loss["gradual"], loss["acdc"]) <= loss["rigl"], loss
    assert loss["rigl"] < loss["set"] < loss["random"], loss
    assert loss["topkast"] < loss["random"], loss
