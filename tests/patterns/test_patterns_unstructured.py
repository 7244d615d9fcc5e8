# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError, PatternError
from gossamer.patterns import Unstructured
from gossamer.patterns.selection import kept_count

UNSTRUCTURED = Unstructured()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_matrices_give_empty_masks(shape):
    assert UNSTRUCTURED.project(torch.zeros(shape), 0.5).shape == shape


@pytest.mark.parametrize("density", [1e-9, 0.1, 0.25, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("scores", [torch.ones(7, 11), torch.arange(77.0).view(7, 11) % 5])
def test_count_is_exact_under_ties(scores, density):
    mask = UNSTRUCTURED.project(scores, density)
    assert int(mask.sum()) == round(density * 77)
    assert UNSTRUCTURED.legal_density((7, 11), density) == int(mask.sum()) / 77


def test_lower_position_wins_a_tie():
    mask = UNSTRUCTURED.project(torch.tensor([[1.0, 2.0, 1.0], [2.0, 1.0, 0.0]]), 0.5)
    assert mask.tolist() == [[True, True, False], [True, False, False]]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), low=st.floats(0.01, 1.0), high=st.floats(0.01, 1.0))
def test_a_higher_density_keeps_a_superset(seed, low, high):
    low, high = min(low, high), max(low, high)
    scores = torch.randint(0, 6, (5, 9), generator=torch.Generator().manual_seed(seed)).double()
    few, many = UNSTRUCTURED.project(scores, low), UNSTRUCTURED.project(scores, high)
    assert bool((many | ~few).all())
    assert int(few.sum()) == kept_count(low, 45)
    dropped = scores[~few]
    assert few.all() or not few.any() or scores[few].min() >= dropped.max()


def test_transposed_scores_are_read_by_position():
    scores = torch.arange(12.0).view(4, 3)
    assert torch.equal(UNSTRUCTURED.project(scores.T, 0.5), UNSTRUCTURED.project(scores, 0.5).T)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, 50, float("nan")])
def test_impossible_densities_are_refused(density):
    with pytest.raises(InputError, match=r"must be in \(0, 1\]"):
        UNSTRUCTURED.project(torch.ones(2, 2), density)


def test_density_is_required():
    with pytest.raises(PatternError, match="needs a density"):
        UNSTRUCTURED.project(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.ones(3), "2 dimensions"),
        (torch.ones(2, 2, dtype=torch.int64), "floating point"),
        (torch.tensor([[1.0, float("nan")]]), "1 of 2 are NaN"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(scores, message):
    with pytest.raises(InputError, match=message):
        UNSTRUCTURED.project(scores, 0.5)


@pytest.mark.parametrize("mask", [torch.ones(2, 2), torch.ones(4, dtype=torch.bool)])
def test_validate_wants_a_bool_matrix(mask):
    with pytest.raises(PatternError, match="expected a bool mask"):
        UNSTRUCTURED.validate(mask, "w")


def test_any_shape_fits():
    UNSTRUCTURED.check_shape((3, 7))
    assert UNSTRUCTURED.padded_shape((3, 7)) == (3, 7)
    assert UNSTRUCTURED.fixed_density is None
    assert UNSTRUCTURED.legal_density((0, 7), 0.3) == 0.3
