# SPDX-License-Identifier: Apache-2.0
"""Patterns of attention: exact to the token, made from blocks directly, said clearly when wrong."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from gossamer.errors import InputError, PatternError
from gossamer.patterns.attention import (
    BlockList,
    draw_blocks,
    from_block_mask,
    parse_attention,
    to_block_mask,
)

# queries, keys, position of the first query
SIZES = [(0, 0, 0), (1, 1, 0), (5, 0, 0), (63, 63, 0), (65, 65, 0), (300, 300, 0)]
SIZES += [(130, 300, 170), (1, 200, 199), (300, 130, 0), (64, 128, 10), (100, 90, -10)]

# The published rules once more, as plain as can be.
RULES = {
    "full": lambda i, j, causal: True,
    "window:100": lambda i, j, causal: 0 <= i - j < 100 if causal else abs(i - j) <= 50,
    "window:7": lambda i, j, causal: 0 <= i - j < 7 if causal else abs(i - j) <= 3,
    "window:1000": lambda i, j, causal: 0 <= i - j < 1000 if causal else abs(i - j) <= 500,
    "window:20,dilation=3": lambda i, j, causal: (
        (i - j) % 3 == 0 and (0 <= i - j < 60 if causal else abs(i - j) <= 30)
    ),
    "global:70": lambda i, j, causal: i < 70 or j < 70,
    "sinks:4": lambda i, j, causal: j < 4,
    "strided:128": lambda i, j, causal: abs(i - j) <= 128 or (i - j) % 128 == 0,
    "strided:7": lambda i, j, causal: abs(i - j) <= 7 or (i - j) % 7 == 0,
    "fixed:128,c=8": lambda i, j, causal: i // 128 == j // 128 or j % 128 >= 120,
    "fixed:30,c=2": lambda i, j, causal: i // 30 == j // 30 or j % 30 >= 28,
    "chunks:64": lambda i, j, causal: i // 64 - j // 64 in (0, 1),
    "chunks:50": lambda i, j, causal: i // 50 - j // 50 in (0, 1),
    "chunks:5": lambda i, j, causal: i // 5 - j // 5 in (0, 1),
    "sinks:3+window:10": lambda i, j, causal: (
        j < 3 or (0 <= i - j < 10 if causal else abs(i - j) <= 5)
    ),
    "global:5|strided:50": lambda i, j, causal: (
        i < 5 or j < 5 or abs(i - j) <= 50 or (i - j) % 50 == 0
    ),
}


def brute_force(rule, queries, keys, offset, causal):
    mask = np.zeros((queries, keys), dtype=bool)
    for i in range(queries):
        for j in range(keys):
            mask[i, j] = rule(i + offset, j, causal) and (not causal or j <= i + offset)
    return mask


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_hold_just_the_pairs_of_the_rule(text, causal):
    for queries, keys, offset in SIZES:
        blocks = parse_attention(text).blocks(queries, keys, causal=causal, offset=offset)
        expected = brute_force(RULES[text], queries, keys, offset, causal)
        assert (blocks.dense_mask(0) == expected).all()
        assert (blocks.row_counts(0) == expected.sum(1)).all()
        assert blocks.density == pytest.approx(expected.mean() if expected.size else 0.0)


def bigbird(queries, block, window, global_, blocks):
    """The rule apart from random blocks, and those as they were found."""
    total = -(-queries // block)
    everybody = {*range((global_ + 1) // 2), *range(total - global_ // 2, total)}
    fixed = {
        (i, j)
        for i in range(total)
        for j in range(total)
        if abs(i - j) <= window // 2 or i in everybody or j in everybody
    }
    inside = blocks.reshape(total, block, total, block).any((1, 3))
    found = {(int(i), int(j)) for i, j in zip(*np.nonzero(inside), strict=True)}
    return fixed, found, everybody, total


@pytest.mark.parametrize("block", [16, 40, 64, 128])
def test_bigbird_has_window_global_and_random_blocks(block):
    queries = 20 * block
    pattern = parse_attention(f"bigbird:block={block},window=3,global=2,random=3")
    lists = pattern.blocks(queries, heads=2)
    assert lists.num_lists == 2, "heads choose other random blocks"
    for head in range(2):
        dense = lists.dense_mask(head)
        fixed, found, everybody, total = bigbird(queries, block, 3, 2, dense)
        assert fixed <= found
        for row in set(range(total)) - everybody:
            assert len([1 for i, j in found - fixed if i == row]) == 3
        whole = dense.reshape(total, block, total, block)
        assert (whole.all((1, 3)) == whole.any((1, 3))).all(), "blocks are whole"
    again = parse_attention(str(pattern)).blocks(queries, heads=2)
    assert (again.by_query.columns == lists.by_query.columns).all()


def test_causal_bigbird_draws_from_the_past_and_short_sequences_are_full():
    lists = parse_attention("bigbird:block=64,window=3,global=1,random=3").blocks(2048, causal=True)
    counts = np.diff(lists.by_query.starts)
    assert counts.tolist() == [min(row + 1, 2 + 1 + 3) for row in range(32)]
    assert parse_attention("bigbird").blocks(300).dense_mask(0).all()


def test_the_list_of_keys_is_the_transpose():
    lists = parse_attention("window:100; strided:50").blocks(300, 200, heads=2, causal=True)
    for head in range(2):
        rows, columns, masks = lists.blocks_of(head)
        first = int(lists.of_head[head]) * lists.shape[1]
        turned = []
        for column in range(lists.shape[1]):
            start, end = lists.by_key.starts[first + column : first + column + 2]
            places = range(start, end)
            turned += [(lists.by_key.columns[p], column, lists.by_key.masks[p]) for p in places]
        expected = sorted(zip(rows, columns, masks, strict=True), key=lambda b: (b[1], b[0]))
        assert turned == expected


@pytest.mark.parametrize("text", ["window:512+global:64", "sinks:4+window:1024", "bigbird"])
def test_a_million_tokens_take_memory_of_their_blocks(text):
    lists = parse_attention(text).blocks(1 << 18 if text == "bigbird" else 1 << 20, causal=True)
    assert len(lists.by_query.columns) < 200 * lists.shape[0]
    assert len(lists.mask_bits) < 20


def test_texts_come_back():
    for text in [*RULES, "bigbird:block=32,window=1,global=0,random=2,seed=7", "full; window:3"]:
        pattern = parse_attention(text)
        assert parse_attention(str(pattern)) == pattern
        assert parse_attention(pattern) is pattern
    assert parse_attention(["window:3", "full"]) == parse_attention("window:3; full")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("windwo:512", "position 1: no pattern is called 'windwo'; did you mean 'window'?"),
        ("global:4+widnow:5", "position 10: no pattern is called 'widnow'"),
        ("window:5,dilatoin=3", "position 10: 'window' has no 'dilatoin'; did you mean 'dilation'"),
        ("window", "'window' needs its length"),
        ("window:x", "must be a whole number, got 'x'"),
        ("window:-3", "must be a whole number, got '-3'"),
        ("window:0", "length must be at least 1"),
        ("window:5+", "position 10: a term is missing"),
        ("", "position 1: a term is missing"),
        ("full:3", "takes no numbers"),
        ("bigbird:window=2", "must be odd"),
        ("fixed:8,c=9", "at most the length"),
        ("window:3,length=4", "given twice"),
        (None, "expected text, got NoneType"),
    ],
)
def test_mistakes_are_named_with_their_place(text, said):
    with pytest.raises(PatternError) as caught:
        parse_attention(text)
    assert said in str(caught.value)
    assert "Legal" in str(caught.value)


def test_patterns_must_divide_the_heads():
    pattern = parse_attention("full; window:3; global:1")
    with pytest.raises(PatternError, match="3 patterns for 4 heads"):
        pattern.blocks(10, heads=4)
    assert pattern.blocks(10, heads=6).of_head.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("text", ["window:100+global:3", "strided:50", "full; window:9"])
def test_block_masks_of_torch_go_both_ways(text):
    lists = parse_attention(text).blocks(300, heads=2, causal=True)
    theirs = to_block_mask(lists)
    back = from_block_mask(theirs)
    for head in range(2):
        assert (back.dense_mask(head) == lists.dense_mask(head)).all()
        rows, columns = np.nonzero(lists.dense_mask(head))
        said = theirs.mask_mod(0, head, torch.from_numpy(rows), torch.from_numpy(columns))
        assert said.all()


@pytest.mark.parametrize("size", [64, 128, (128, 64)])
def test_masks_that_torch_made_are_read(size):
    rule = lambda b, h, q, k: (q >= k) & ((q - k) % (h + 2) < 2)  # noqa: E731
    theirs = create_block_mask(rule, 1, 2, 200, 170, device="cpu", BLOCK_SIZE=size)
    lists = from_block_mask(theirs)
    i, j = np.arange(200)[:, None], np.arange(170)
    for head in range(2):
        assert (lists.dense_mask(head) == ((i >= j) & ((i - j) % (head + 2) < 2))).all()


def test_masks_that_cannot_be_read_are_refused():
    rule = lambda b, h, q, k: q >= k  # noqa: E731
    with pytest.raises(InputError, match="multiples of 64"):
        from_block_mask(create_block_mask(rule, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32))
    with pytest.raises(InputError, match="2 batches"):
        from_block_mask(create_block_mask(rule, 2, 1, 64, 64, device="cpu", BLOCK_SIZE=64))


def test_a_picture_shows_whole_and_partial_blocks():
    lists = parse_attention("window:256").blocks(1024, causal=True)
    picture = draw_blocks(lists, title="a < b")
    assert picture.startswith("<svg")
    for part in ("a &lt; b", "#1f4e79", "#8fb8de"):
        assert part in picture
    assert len(draw_blocks(parse_attention("window:256").blocks(1 << 17))) < 60_000


def test_lists_are_objects_of_their_own():
    assert isinstance(parse_attention("full").blocks(1), BlockList)
    with pytest.raises(PatternError, match="queries"):
        parse_attention("full").blocks(-1, 4)
