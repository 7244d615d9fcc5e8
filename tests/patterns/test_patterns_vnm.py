# SPDX-License-Identifier: Apache-2.0
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import PatternError
from gossamer.patterns import NM, VNM
from gossamer.patterns.vnm import _best_columns, _good_columns


def retained(scores, mask):
    return float(scores[mask].double().sum())


@pytest.mark.parametrize("shape", [(0, 0), (0, 8), (3, 0)])
def test_empty_matrices_fit(shape):
    mask = VNM(4, 8).project(torch.zeros(shape))
    assert mask.shape == shape
    VNM(4, 8).validate(mask)


@settings(deadline=None, max_examples=40)
@given(
    block_rows=st.integers(1, 9),
    group=st.sampled_from([4, 5, 8, 9, 16, 100]),
    num_rows=st.integers(0, 20),
    num_groups=st.integers(0, 3),
    equal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_projection_is_legal(block_rows, group, num_rows, num_groups, equal, seed):
    pattern = VNM(block_rows, group)
    shape = (num_rows, num_groups * group)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.zeros(shape) if equal else torch.randn(shape, generator=generator)
    mask = pattern.project(scores)
    pattern.validate(mask)
    assert int(mask.sum()) == num_rows * num_groups * 2
    assert torch.equal(mask, pattern.project(scores))


@pytest.mark.parametrize("group", [4, 8, 16, 32])
def test_one_row_per_block_equals_plain_nm(group):
    generator = torch.Generator().manual_seed(0)
    distinct = torch.randn(9, group * 3, generator=generator).abs()
    tied = torch.randint(0, 4, (9, group * 3), generator=generator).float()
    for scores in (distinct, tied):
        assert torch.equal(VNM(1, group).project(scores), NM(2, group).project(scores))


@pytest.mark.parametrize("block_rows", [1, 3, 64])
def test_groups_of_four_equal_plain_2_4(block_rows):
    scores = torch.rand(70, 24, generator=torch.Generator().manual_seed(1))
    assert torch.equal(VNM(block_rows, 4).project(scores), NM(2, 4).project(scores))


def test_groups_of_eight_are_searched_exactly():
    scores = torch.randn(6, 8, generator=torch.Generator().manual_seed(2)).abs()
    best = max(
        float(scores[:, list(four)].topk(2, dim=1).values.double().sum())
        for four in combinations(range(8), 4)
    )
    assert retained(scores, VNM(6, 8).project(scores)) == pytest.approx(best, rel=1e-12)


def test_swaps_come_close_to_the_exact_search_and_never_beat_it():
    scores = torch.randn(8, 16, 60, 8, generator=torch.Generator().manual_seed(3)).abs().double()

    def total(shared_BGM):
        chosen = scores.masked_fill(~shared_BGM.unsqueeze(1), -torch.inf)
        return float(chosen.topk(2, dim=-1).values.sum())

    exact, good = total(_best_columns(scores)), total(_good_columns(scores))
    assert good <= exact * (1 + 1e-12)
    assert good >= exact * 0.995


def test_a_short_last_block_chooses_its_own_columns():
    scores = torch.zeros(5, 16)
    scores[:4, :4] = 1.0
    scores[4, 12:14] = 1.0
    mask = VNM(4, 16).project(scores)
    assert mask[:4, :2].all()
    assert mask[4].nonzero().flatten().tolist() == [12, 13]


def test_infinite_scores_are_ranked():
    scores = torch.zeros(4, 16)
    scores[:, 9] = torch.inf
    scores[:, 3] = -torch.inf
    mask = VNM(4, 16).project(scores)
    VNM(4, 16).validate(mask)
    assert mask[:, 9].all()
    assert not mask[:, 3].any()


def test_shapes():
    assert VNM(64, 16).padded_shape((3, 770)) == (3, 784)
    assert VNM(64, 16).grid((130, 32)) == (3, 2)
    assert VNM(64, 16).fixed_density == 0.125
    VNM(64, 16).check_shape((3, 768))
    with pytest.raises(PatternError, match=r'fc \[3, 770\].*pad to 784.*pattern "64:2:14"'):
        VNM(64, 16).check_shape((3, 770), "fc")


def test_validate_names_the_row_or_the_block_that_is_wrong():
    mask = torch.zeros(4, 16, dtype=torch.bool)
    mask[:, :2] = True
    VNM(2, 8).validate(mask[:, :8])
    mask[:, 8:10] = True
    mask[3, 15] = True
    with pytest.raises(PatternError, match="row 3, columns 8 to 15, keeps 3"):
        VNM(2, 8).validate(mask)
    spread = torch.zeros(3, 8, dtype=torch.bool)
    spread[0, [0, 1]] = spread[1, [2, 3]] = spread[2, [4, 5]] = True
    VNM(2, 8).validate(spread)
    with pytest.raises(PatternError, match="rows from 0, columns 0 to 7, use 6"):
        VNM(3, 8).validate(spread)
