# SPDX-License-Identifier: Apache-2.0
"""Memory of large results: used again, never more of it than was in use at once."""

import gc

import pytest
import torch

from gossamer.ops.results import drop_results, new_result, offer_huge_pages, result_bytes

ROWS, WIDTH = 1100, 1001  # 4.2 MiB
LIKE = torch.empty(0)


@pytest.fixture(autouse=True)
def _nothing_kept():
    gc.collect()
    drop_results()
    yield
    drop_results()


def in_use_since(before):
    return result_bytes()[0] - before


def test_a_freed_result_is_the_next_one_of_its_size():
    first = new_result(LIKE, ROWS, WIDTH)
    where, size = first.data_ptr(), first.numel() * 4
    assert first.is_contiguous()
    assert first.shape == (ROWS, WIDTH)
    del first
    assert result_bytes()[1] == size
    assert new_result(LIKE, ROWS, WIDTH).data_ptr() == where


def test_two_results_never_share_memory():
    first, second = (new_result(LIKE, ROWS, WIDTH).fill_(k) for k in (1.0, 2.0))
    assert bool((first == 1.0).all())
    assert bool((second == 2.0).all())
    view = first[5:]
    del first
    third = new_result(LIKE, ROWS, WIDTH).fill_(3.0)
    assert bool((view == 1.0).all())
    assert third.data_ptr() != view.data_ptr()


def test_no_more_is_held_than_was_in_use_at_once():
    before = result_bytes()[0]
    for extra in range(1, 9):  # other sizes every time, as drawn batches have them
        new_result(LIKE, ROWS + extra, WIDTH)
        assert sum(result_bytes()) - before <= (ROWS + extra) * WIDTH * 4
    pair = [new_result(LIKE, ROWS, WIDTH) for _ in range(2)]
    assert in_use_since(before) == 2 * ROWS * WIDTH * 4
    del pair
    assert sum(result_bytes()) - before == 2 * ROWS * WIDTH * 4


def test_a_result_that_nobody_takes_goes_after_a_while():
    big = new_result(LIKE, 3 * ROWS, WIDTH)
    del big
    for _ in range(70):
        new_result(LIKE, ROWS, WIDTH)
    assert result_bytes()[1] <= ROWS * WIDTH * 4


def test_memory_goes_back_when_it_is_asked_for():
    new_result(LIKE, ROWS, WIDTH)
    drop_results()
    assert result_bytes()[1] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_dtypes_and_small_ones_are_torchs(dtype):
    before = result_bytes()[0]
    kept = [new_result(LIKE.to(dtype), ROWS, WIDTH), new_result(LIKE, 3, 5), new_result(LIKE, 0, 5)]
    assert [t.dtype for t in kept] == [dtype, torch.float32, torch.float32]
    assert in_use_since(before) == 0


def test_bfloat16_has_half_the_bytes():
    before = result_bytes()[0]
    kept = new_result(LIKE.bfloat16(), 2 * ROWS, WIDTH)
    assert kept.dtype is torch.bfloat16
    assert in_use_since(before) == 2 * ROWS * WIDTH * 2


def test_a_result_lives_as_long_as_what_autograd_keeps_of_it():
    before = result_bytes()[0]
    x = new_result(LIKE, ROWS, WIDTH).fill_(1.0)
    weight = torch.ones(WIDTH, requires_grad=True)
    y = (x * weight).sum()
    del x
    assert in_use_since(before) > 0
    y.backward()
    del y
    assert float(weight.grad[0]) == ROWS
    assert in_use_since(before) == 0


def test_memory_that_is_moved_into_large_pages_holds_what_it_held():
    x = torch.randn(3_000_001)
    for part in (x, x[1:2], x[5:], x[::2], x[:0], x.to_sparse_coo()):
        before = part.clone()
        where = None if part.is_sparse else part.data_ptr()
        offer_huge_pages(part)
        assert where is None or part.data_ptr() == where
        assert torch.equal(part.to_dense(), before.to_dense())
