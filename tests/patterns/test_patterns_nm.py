# SPDX-License-Identifier: Apache-2.0
import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import PatternError
from gossamer.patterns import NM


@pytest.mark.parametrize("shape", [(0, 0), (0, 8), (3, 0)])
def test_empty_matrices_fit(shape):
    mask = NM(2, 4).project(torch.zeros(shape))
    assert mask.shape == shape
    NM(2, 4).validate(mask)


@pytest.mark.parametrize(
    "pattern", [NM(1, 1), NM(2, 4), NM(4, 4), NM(4, 16), NM(5, 10), NM(31, 32)]
)
def test_every_group_keeps_n_when_all_scores_are_equal(pattern):
    mask = pattern.project(torch.full((3, pattern.group * 3), -1.0))
    groups = mask.view(3, 3, pattern.group)
    assert groups[..., : pattern.num_kept].all()
    assert int(mask.sum()) == 9 * pattern.num_kept


def test_the_largest_of_each_group_stay():
    scores = torch.tensor([[1.0, 4.0, 3.0, 2.0, 9.0, 9.0, 9.0, 10.0]])
    mask = NM(2, 4).project(scores)
    assert mask.tolist() == [[False, True, True, False, True, False, False, True]]


@settings(deadline=None, max_examples=50)
@given(data=st.data(), group=st.integers(1, 32), seed=st.integers(0, 99))
def test_no_dropped_score_beats_a_kept_one_of_its_group(data, group, seed):
    num_kept = data.draw(st.integers(1, group))
    pattern = NM(num_kept, group)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (4, group * 3), generator=generator).float()
    mask = pattern.project(scores, pattern.fixed_density)
    pattern.validate(mask)
    kept = scores.masked_fill(~mask, torch.inf).view(4, 3, group).amin(-1)
    dropped = scores.masked_fill(mask, -torch.inf).view(4, 3, group).amax(-1)
    assert bool((kept >= dropped).all())


def test_a_larger_n_keeps_a_superset():
    scores = torch.rand(6, 64, generator=torch.Generator().manual_seed(0))
    masks = [NM(n, 16).project(scores) for n in range(1, 17)]
    for few, many in itertools.pairwise(masks):
        assert bool((many | ~few).all())


def test_shape_error_lists_the_options():
    with pytest.raises(PatternError) as caught:
        NM(4, 16).check_shape((3072, 770), "layers.3.fc1.weight")
    assert str(caught.value) == (
        "layers.3.fc1.weight [3072, 770]: 4:16 needs the input size divisible by 16, got 770."
        ' Options: pad to 784 columns (adds 14), pattern "3:11", or add the layer to ignore.'
    )


@pytest.mark.parametrize("num_columns", range(1, 70))
def test_the_pattern_that_is_offered_instead_fits(num_columns):
    try:
        NM(2, 4).check_shape((1, num_columns))
    except PatternError as error:
        offered = re.search(r'pattern "(\d+):(\d+)"', str(error))
        if offered:
            NM(int(offered[1]), int(offered[2])).check_shape((1, num_columns))
        else:
            assert all(num_columns % m for m in range(2, 33))
    else:
        assert num_columns % 4 == 0


@pytest.mark.parametrize(("columns", "padded"), [(0, 0), (1, 16), (15, 16), (16, 16), (17, 32)])
def test_padding_is_explicit(columns, padded):
    assert NM(4, 16).padded_shape((3, columns)) == (3, padded)


def test_project_needs_a_fitting_shape_and_density():
    with pytest.raises(PatternError, match="divisible by 4"):
        NM(2, 4).project(torch.ones(2, 6))
    with pytest.raises(PatternError, match=r"density 0\.25 was asked for"):
        NM(2, 4).project(torch.ones(2, 4), 0.25)
    assert NM(2, 4).legal_density((2, 4), 0.1) == 0.5


@pytest.mark.parametrize(("column", "value", "found"), [(5, False, 1), (6, True, 3)])
def test_validate_names_the_group_that_is_wrong(column, value, found):
    mask = torch.tensor([[True, True, False, False]]).repeat(3, 2)
    mask[1, column] = value
    with pytest.raises(PatternError, match=rf"fc1 .*row 1, columns 4 to 7, keeps {found}"):
        NM(2, 4).validate(mask, "fc1")


def test_validate_refuses_a_shape_that_does_not_fit():
    with pytest.raises(PatternError, match="divisible by 4"):
        NM(2, 4).validate(torch.ones(2, 6, dtype=torch.bool))
