# SPDX-License-Identifier: Apache-2.0
"""Optimizers side by side: the steps of each, one state, one learning rate schedule."""

import copy

import pytest
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.optim import SideBySide

ROW_OPTIMIZERS = [torch.optim.Adagrad, torch.optim.SparseAdam, torch.optim.SGD]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.EmbeddingBag(9, 3, mode="sum", sparse=True)
        self.head = nn.Linear(3, 1)

    def forward(self, ids):
        return self.head(self.table(ids)).sum()


def pair(model, rows):
    with_rows = rows([model.table.weight], lr=0.1)
    return torch.optim.AdamW(model.head.parameters(), lr=0.01), with_rows


def train(model, optimizers, batches):
    for ids in batches:
        for each in optimizers:
            each.zero_grad()
        model(ids).backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            for each in optimizers:
                each.step()


BATCHES = [torch.tensor([[1, 2], [2, 5]]), torch.tensor([[1, 1], [7, 7]]), torch.tensor([[0, 2]])]


@pytest.mark.parametrize("rows", ROW_OPTIMIZERS)
def test_it_takes_the_steps_of_each_and_leaves_other_rows_alone(rows):
    alone, together = Model(), Model()
    before = together.table.weight.detach().clone()
    train(alone, pair(alone, rows), BATCHES)
    train(together, [SideBySide(pair(together, rows))], BATCHES)
    for one, two in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(one, two)
    moved = (together.table.weight != before).any(dim=1).nonzero().flatten()
    assert set(moved.tolist()) <= {0, 1, 2, 5, 7}
    assert len(moved) > 3


@pytest.mark.parametrize("rows", ROW_OPTIMIZERS)
def test_a_state_that_was_saved_goes_on(rows):
    model = Model()
    optimizer = SideBySide(pair(model, rows))
    train(model, [optimizer], BATCHES[:2])
    again = copy.deepcopy(model)
    other = SideBySide(pair(again, rows))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, each in ((model, optimizer), (again, other)):
        train(one, [each], BATCHES)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_groups_are_those_of_the_optimizers():
    model = Model()
    optimizer = SideBySide(pair(model, torch.optim.SGD))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [param.detach().clone() for param in model.parameters()]
    train(model, [optimizer], BATCHES)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_parameter_of_two_is_refused():
    model = Model()
    with pytest.raises(InputError, match="two of the optimizers"):
        SideBySide([torch.optim.SGD(model.parameters(), 0.1), *pair(model, torch.optim.SGD)])


def test_a_copy_is_its_own():
    model = Model()
    optimizer = SideBySide(pair(model, torch.optim.Adagrad))
    train(model, [optimizer], BATCHES[:1])
    other, copied = copy.deepcopy((model, optimizer))
    for one, each in ((model, optimizer), (other, copied)):
        train(one, [each], BATCHES)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one is not two
        assert torch.equal(one, two)
