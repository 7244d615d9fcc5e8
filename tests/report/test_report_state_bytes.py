# SPDX-License-Identifier: Apache-2.0
"""Training state is counted by storage: once, however many tensors look at it."""

import torch
from torch import nn

import gossamer
from gossamer.report.state_bytes import training_state_bytes


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    return optimizer


def test_dense_adamw_holds_sixteen_bytes_per_parameter():
    model = nn.Sequential(nn.Linear(8, 6, bias=False))
    optimizer = trained(model)
    step = 4
    assert training_state_bytes(model, optimizer) == 16 * 48 + step


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    assert training_state_bytes(model, trained(model)) == 16 * 64 + 4


def test_compaction_shrinks_the_state():
    model = nn.Sequential(nn.Linear(8, 64, bias=False))
    optimizer = trained(model)
    before = training_state_bytes(model, optimizer)
    gossamer.sparsify(model, sparsity=0.75)
    gossamer.compact(model, optimizer)
    after = training_state_bytes(model, optimizer)
    assert before == 16 * 512 + 4
    assert after == 16 * 128 + 512 // 8 + 4


def test_an_empty_model_holds_nothing():
    model = nn.Sequential(nn.ReLU())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    assert training_state_bytes(model, optimizer) == 0
