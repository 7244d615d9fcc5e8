# SPDX-License-Identifier: Apache-2.0
"""Gradients that are added and measured in one pass: against float64; not at all if one is bad."""

import pytest
import torch

from gossamer.ops import _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.training.optimizer_passes import absorb, absorb_by_torch

SHAPES = [(0, 5), (1, 1), (3, 7), (2, 32), (5, 33), (70, 784), (3, 2049), (2, 40000)]


def case(shape, dtype=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    gradient, held = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return gradient, held, torch.full(shape[:1], 7.0, dtype=dtype), torch.empty_like(gradient[:, 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernels", [*available_kernels(), "torch", "float64"])
def test_sum_and_mean_squares_are_those_of_float64(shape, kernels, monkeypatch):
    gradient, held, fresh, scores = case(shape, torch.float64 if kernels == "float64" else None)
    before = held.double().clone()
    if kernels == "torch":
        absorb_by_torch(gradient, held, fresh, scores)
    else:
        if kernels != "float64":
            monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
        absorb(gradient, held, fresh, scores)
    total = before + gradient.double()
    torch.testing.assert_close(held.double(), total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        fresh.double(), gradient.double().square().mean(1), rtol=2e-6, atol=0
    )
    torch.testing.assert_close(scores.double(), total.square().mean(1), rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("function", [absorb, absorb_by_torch])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_blocks_near_a_bad_number_keep_what_they_held(function, bad):
    gradient, held, fresh, scores = case((70, 784))
    together = _native.absorbed_together(784)
    assert 1 < together < 30
    gradient[30, 100] = bad
    before = held.clone()
    function(gradient, held, fresh, scores)
    spared = torch.zeros(70, dtype=torch.bool)
    spared[30 // together * together :][:together] = True
    assert torch.equal(held[spared], before[spared])
    assert torch.equal(held[~spared], (before + gradient)[~spared])
    assert not torch.isfinite(fresh[30])
    assert not torch.isfinite(scores[30])
    assert torch.isfinite(scores).sum() == 69


def test_half_precision_gradients_are_added_to_float32():
    gradient, held, fresh, scores = case((4, 9))
    expected = held + gradient.bfloat16().float()
    absorb(gradient.bfloat16(), held, fresh, scores)
    assert torch.equal(held, expected)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="block_size"):
        _native.absorb(1, 1, 3, 0, 1, 1, "reference")
    with pytest.raises(ValueError, match="null"):
        _native.absorb(0, 1, 3, 2, 1, 1, "reference")
