# SPDX-License-Identifier: Apache-2.0
"""One call of a model, in the forms users have inputs and outputs in."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gossamer.nn.batch import Batch, first_tensor, named_tensor, rows_of


class Sum(nn.Module):
    def forward(self, a, b=0):
        return a + b


@pytest.mark.parametrize(
    "arguments",
    [{"a": torch.ones(2), "b": 2}, [torch.ones(2), 2], (torch.ones(2), 2), torch.full((2,), 3.0)],
)
def test_arguments_are_passed_as_they_are_meant(arguments):
    batch = Batch(arguments)
    assert batch.run(Sum()).tolist() == [3.0, 3.0]
    assert batch.call(Sum())().tolist() == [3.0, 3.0]
    assert isinstance(batch.first_tensor(), torch.Tensor)


def test_the_first_tensor_is_the_token_numbers():
    mask, ids = torch.ones(1, 2), torch.zeros(1, 2)
    assert first_tensor({"attention_mask": mask, "input_ids": ids}) is ids
    assert first_tensor({"attention_mask": mask}) is mask
    assert first_tensor([None, "x", ids]) is ids
    assert first_tensor([]) is None
    assert first_tensor("text") is None


def test_outputs_are_found_by_name_in_mappings_and_objects():
    logits = torch.ones(2)
    assert named_tensor({"logits": logits}, "logits") is logits
    assert named_tensor(SimpleNamespace(logits=logits), "logits") is logits
    assert named_tensor({"logits": 3}, "logits") is None
    assert named_tensor(logits, "logits") is None


def test_rows_leave_padding_out():
    states = torch.arange(12.0).view(2, 3, 2)
    keep = torch.tensor([[True, False, False], [True, True, True]])
    assert rows_of(states, keep).tolist() == [[0, 1], [6, 7], [8, 9], [10, 11]]
    assert rows_of(states, None).shape == (6, 2)
    # One vector per sample has no positions to leave out.
    assert torch.equal(rows_of(states[:, 0], keep), states[:, 0])
    assert rows_of(states, torch.zeros(2, 3, dtype=torch.bool)).shape == (0, 2)
