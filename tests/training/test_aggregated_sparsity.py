# SPDX-License-Identifier: Apache-2.0
"""Neurons that no token of a window has, counted against a loop."""

import pytest
import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.training.recovery.aggregated_sparsity import measure_aggregated_sparsity


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8))


def call(model, batch):
    return model(batch)


@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_counts_are_those_of_a_loop(tokens):
    model = block()
    texts = [torch.randn(2, tokens, 8) for _ in range(3)]
    windows = [w for w in (1, 2, 3) if w <= tokens]
    for row in measure_aggregated_sparsity(model, texts, call, windows):
        shares, chances = [], []
        for text in texts:
            zero = model[0](text) <= 0
            whole = tokens // row.window
            parts = [
                zero[b, w * row.window : (w + 1) * row.window].all(0).double().mean()
                for b in range(2)
                for w in range(whole)
            ]
            shares.append(float(sum(parts) / len(parts)))
            chances.append(float(zero.double().mean()) ** row.window)
        assert row.untouched == pytest.approx(sum(shares) / 3, abs=1e-6)
        assert row.by_chance == pytest.approx(sum(chances) / 3, abs=1e-6)


def test_equal_tokens_touch_what_one_touches():
    row = torch.randn(1, 1, 8).expand(1, 8, 8)
    one, eight = measure_aggregated_sparsity(block(), [row], call, (1, 8))
    assert one.untouched == eight.untouched > eight.by_chance
    assert eight.speculation(0.1) == pytest.approx(1.8 / (1.8 - eight.untouched))


def test_what_is_refused():
    with pytest.raises(TargetError, match="no feed-forward block"):
        measure_aggregated_sparsity(nn.Linear(3, 3), [], call)
    with pytest.raises(InputError, match="1 token or more"):
        measure_aggregated_sparsity(block(), [], call, (0,))
    with pytest.raises(InputError, match="as long as a window of 4"):
        measure_aggregated_sparsity(block(), [torch.randn(1, 3, 8)], call, (4,))
