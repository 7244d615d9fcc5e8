# SPDX-License-Identifier: Apache-2.0
"""Strided and fixed patterns in two lists of blocks: the same pairs and numbers, fewer blocks."""

import numpy as np
import pytest
import torch

import gossamer
from gossamer.patterns.attention import parse_attention
from gossamer.patterns.attention.sorted_parts import sorted_parts

TEXTS = ["strided:32", "strided:40+sinks:3", "fixed:64,c=4", "window:20+fixed:100,c=7"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokens", [2048, 1999])
def test_every_pair_is_in_one_of_the_lists(text, tokens, causal):
    parts = sorted_parts(text, tokens, tokens, 2, causal, None)
    whole = parse_attention(text).blocks(tokens, causal=causal)
    found = parts.near.dense_mask(0).astype(np.int64)
    rows = np.arange(tokens) if parts.queries is None else parts.queries
    np.add.at(found, (rows[:, None], parts.keys[None]), parts.far.dense_mask(0))
    assert np.array_equal(found, whole.dense_mask(0))
    assert len(parts.near.rows) + len(parts.far.rows) < len(whole.rows)


def results(pattern, leaves, causal):
    leaves = [x.detach().requires_grad_() for x in leaves]
    out, lse = gossamer.attention(*leaves, pattern, causal=causal, return_lse=True)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in (out, lse)]
    total = sum((x * w).sum() for x, w in zip((out, lse), weights, strict=True))
    return out.detach(), lse.detach(), *torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_results_are_those_of_one_list_in_float64(text, causal):
    torch.manual_seed(0)
    leaves = [torch.randn(1, heads, 1500, 8) for heads in (2, 1, 1)]
    assert sorted_parts(text, 1500, 1500, 2, causal, None) is not None
    found = results(text, leaves, causal)
    wanted = results(text, [x.double() for x in leaves], causal)  # torch, all blocks
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=2e-5)
    half = results(text, [x.bfloat16() for x in leaves], causal)
    assert half[0].dtype is torch.bfloat16
    for a, b in zip(half, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=0.05, atol=0.06)


def test_where_one_list_is_better_there_is_one():
    assert sorted_parts("window:64", 4096, 4096, 1, True, None) is None
    assert sorted_parts("strided:128", 256, 256, 1, True, None) is None
    assert sorted_parts("strided:32", 2048, 2047, 1, True, None) is None
    assert sorted_parts("strided:32; window:20", 2048, 2048, 2, True, None) is None
    assert sorted_parts("strided:32+strided:40", 2048, 2048, 1, True, None) is None
    assert sorted_parts("strided:32", 0, 0, 1, True, None) is None


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_grow_far_slower_than_the_square(causal):
    counts = []
    for tokens in (4096, 16384):
        parts = sorted_parts("strided:128", tokens, tokens, 1, causal, None)
        counts.append(len(parts.near.rows) + len(parts.far.rows))
    assert counts[1] < 5 * counts[0]


def test_threads_change_no_bit_of_gradients():
    torch.manual_seed(0)
    leaves = [torch.randn(1, 1, 700, 16) for _ in range(3)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(results("window:200+sinks:2", leaves, True))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
