# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from gossamer.errors import PatternError
from gossamer.patterns import Unstructured, detect_pattern, parse_pattern


@pytest.mark.parametrize(
    "text",
    [
        *("1:4", "2:4", "3:4", "2:8", "4:8", "1:16", "8:16", "5:32"),
        *("block:4x4", "block:8x8", "block:16x16", "block:32x32"),
        *("block:1x4", "block:4x1", "block:1x16", "block:16x1", "unstructured"),
    ],
)
def test_projected_masks_are_recognised(text):
    pattern = parse_pattern(text)
    scores = torch.rand(128, 128, generator=torch.Generator().manual_seed(6))
    density = 0.4 if pattern.fixed_density is None else None
    assert detect_pattern(pattern.project(scores, density)) == pattern


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(0, 0, dtype=torch.bool),
        torch.zeros(0, 4, dtype=torch.bool),
        torch.zeros(8, 8, dtype=torch.bool),
        torch.ones(8, 8, dtype=torch.bool),
        torch.tensor([[True, False, True], [True, False, False]]),
    ],
)
def test_masks_that_say_nothing_are_unstructured(mask):
    assert detect_pattern(mask) == Unstructured()


def test_one_weight_too_few_is_enough_to_refuse():
    mask = torch.tensor([[True, True, False, False]]).repeat(64, 32)
    assert str(detect_pattern(mask)) == "2:4"
    mask[40, 60] = False
    assert detect_pattern(mask) == Unstructured()


def test_input_size_that_does_not_divide_is_not_nm():
    mask = torch.tensor([[True, True, False, False, True, True]]).repeat(3, 1)
    assert detect_pattern(mask) == Unstructured()


def test_only_bool_matrices_are_looked_at():
    with pytest.raises(PatternError, match="expected a bool mask"):
        detect_pattern(torch.ones(4, 4))
