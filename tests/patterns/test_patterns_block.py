# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import PatternError
from gossamer.patterns import Block, Unstructured
from gossamer.patterns.selection import kept_count


@pytest.mark.parametrize("shape", [(0, 0), (0, 6), (4, 0)])
def test_empty_matrices_fit(shape):
    assert Block(2, 3).project(torch.zeros(shape), 0.5).shape == shape


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    grid=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    density=st.floats(0.001, 1.0),
    equal=st.booleans(),
)
def test_whole_blocks_with_an_exact_count(rows, columns, grid, density, equal):
    block = Block(rows, columns)
    shape = (grid[0] * rows, grid[1] * columns)
    scores = torch.ones(shape) if equal else torch.rand(shape)
    mask = block.project(scores, density)
    block.validate(mask)
    num_blocks = grid[0] * grid[1]
    assert int(mask.sum()) == kept_count(density, num_blocks) * rows * columns
    if num_blocks:
        assert block.legal_density(shape, density) == int(mask.sum()) / mask.numel()


def test_the_heaviest_blocks_stay_and_the_first_wins_a_tie():
    scores = torch.tensor([[1.0, 1.0, 0.0, 3.0], [1.0, 1.0, 0.0, 1.0]])
    assert Block(2, 2).project(scores, 0.5).tolist() == [[True, True, False, False]] * 2


def test_one_infinite_score_beats_any_finite_block():
    scores = torch.full((2, 4), 1e38)
    scores[0, 3] = torch.inf
    scores[1, 2] = -1e38
    assert Block(2, 2).project(scores, 0.5).tolist() == [[False, False, True, True]] * 2


def test_blocks_of_one_weight_equal_unstructured():
    scores = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Block(1, 1).project(scores, 0.3), Unstructured().project(scores, 0.3))


def test_shapes_that_do_not_divide_are_refused_with_the_padding():
    with pytest.raises(PatternError, match=r"fc \[7, 8\].*rows divisible by 4.*pad to \[8, 8\]"):
        Block(4, 4).check_shape((7, 8), "fc")
    with pytest.raises(PatternError, match="scores"):
        Block(4, 4).project(torch.ones(8, 7), 0.5)
    assert Block(4, 3).padded_shape((7, 8)) == (8, 9)


def test_validate_names_the_block_that_is_kept_in_part():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[3, 5] = False
    with pytest.raises(PatternError, match="at row 2, column 3 keeps 5 of 6"):
        Block(2, 3).validate(mask)
