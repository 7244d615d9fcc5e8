# SPDX-License-Identifier: Apache-2.0
"""Zeros of feed-forward activations: counted on known numbers, without padding, in every block."""

import pytest
import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.relufication import relufy
from gossamer.training.recovery import measure_activation_sparsity
from gossamer.zoo import TinyEncoder


def call(model, batch):
    return model(batch)


def test_zeros_and_dead_neurons_of_known_numbers():
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [-1, -1], [1, 1]]))
    data = [torch.tensor([[1.0, -2.0], [3.0, 1.0]]), torch.tensor([[[2.0, 0.0]]])]
    model.train()
    found = measure_activation_sparsity(model, data, call)
    # Active: (1, 0, 1, 0), (3, 1, 0, 4), (2, 0, 0, 2).
    (layer,) = found.layers
    assert (layer.name, layer.layer, layer.tokens, layer.neurons) == ("1", "2", 3, 4)
    assert layer.zeros == found.zeros == pytest.approx(5 / 12)
    assert layer.dead == 0
    assert measure_activation_sparsity(model, data[1:], call).layers[0].dead == 0.5
    assert model.training
    assert not model[2]._forward_pre_hooks
    assert found.to_dict()["layers"][0]["tokens"] == 3
    assert "41.7%" in str(found)


def test_padding_is_left_out_and_every_block_counts():
    torch.manual_seed(0)
    model = TinyEncoder(20, 2, width=16, num_heads=2, num_layers=3, ffn_width=32).eval()
    ids = torch.randint(0, 20, (4, 9))
    keep = torch.arange(9) < torch.tensor([[3], [9], [1], [5]])
    dense = measure_activation_sparsity(model, [ids], lambda m, b: m(b, keep), keep=lambda b: keep)
    assert [layer.tokens for layer in dense.layers] == [18] * 3
    assert dense.zeros == 0
    relufy(model)
    padded = measure_activation_sparsity(model, [ids], lambda m, b: m(b, keep), keep=lambda b: keep)
    alone = measure_activation_sparsity(
        model, [ids[row : row + 1, :n] for row, n in enumerate((3, 9, 1, 5))], call
    )
    assert [x.zeros for x in padded.layers] == pytest.approx([x.zeros for x in alone.layers])
    assert 0.3 < padded.zeros < 0.7


def test_what_is_refused():
    with pytest.raises(TargetError, match="no feed-forward block"):
        measure_activation_sparsity(nn.Linear(2, 2), [], call)
    with pytest.raises(InputError, match="saw no token"):
        measure_activation_sparsity(TinyEncoder(20, 2), [], call)
