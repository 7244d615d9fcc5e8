# SPDX-License-Identifier: Apache-2.0
"""Arrays of older files are read to the same bits and checked as before."""

import pytest
import torch
from older_arrays import OLDER

from gossamer.errors import FormatError
from gossamer.formats import SparseMatrix, decode, encode
from gossamer.patterns import parse_pattern

CASES = [
    *(("nm", text, (5, 48)) for text in ("1:1", "2:4", "3:8", "1:16", "2:16", "4:16", "5:24")),
    *(("vnm", text, (5, 48)) for text in ("1:2:4", "2:2:8", "64:2:16", "3:2:24")),
    *(("nmg", text, (6, 12)) for text in ("nmg:1:3:2", "nmg:2:3:4", "nmg:1:2:6", "nmg:2:2:3")),
]


def case(text, shape):
    pattern = parse_pattern(text)
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(5)) + 0.1
    return SparseMatrix.from_dense(scores, pattern.project(scores, pattern.fixed_density), pattern)


@pytest.mark.parametrize(("name", "text", "shape"), CASES)
def test_older_arrays_are_read_to_the_same_bits(name, text, shape):
    matrix = case(text, shape)
    older, now = OLDER[name](matrix), encode(matrix, name)[1]
    assert set(older) != set(now)
    again = decode(name, older, shape, matrix.pattern)
    assert torch.equal(again.mask(), matrix.mask())
    assert torch.equal(again.values, matrix.values)
    rewritten = encode(again, name)[1]
    assert all(torch.equal(rewritten[key], now[key]) for key in now)


def test_the_arrays_that_a_file_of_2_4_held():
    arrays = {
        "values": torch.tensor([[[2.0, 4.0], [5.0, 7.0]], [[9.0, 10.0], [15.0, 16.0]]]),
        "positions": torch.tensor([[0x31, 0x20], [0x10, 0x32]], dtype=torch.uint8),
    }
    expected = [[0, 2, 0, 4, 5, 0, 7, 0], [9, 10, 0, 0, 0, 0, 15, 16]]
    assert decode("nm", arrays, (2, 8), parse_pattern("2:4")).dense().tolist() == expected


SAMPLES = {"nm": ("3:8", (5, 24)), "vnm": ("2:2:8", (5, 24)), "nmg": ("nmg:1:3:2", (6, 12))}

# format, array, what becomes of it, what the error says.
HOSTILE = [
    ("nm", "positions", lambda a: a | 0x08, "outside 0 to 7"),
    ("nm", "positions", lambda a: a * 0, r"increase, found \[0, 0, 0\]"),
    ("nm", "positions", lambda a: torch.full_like(a, 0x12), "padding bits"),
    ("nm", "positions", lambda a: torch.full_like(a, 0x01), "strictly increase"),
    ("nm", "positions", lambda a: a[:, :-1], r"shape \[5, 5\]"),
    ("nm", "positions", lambda a: a.short(), "must be uint8"),
    ("nm", "values", lambda a: a[..., :2], r"shape \[5, 3, 3\]"),
    ("vnm", "columns", lambda a: a + 8, "shared columns.*outside 0 to 7"),
    ("vnm", "columns", lambda a: a * 0, "shared columns.*strictly increase"),
    ("vnm", "columns", lambda a: a.flip(2), "shared columns.*strictly increase"),
    ("vnm", "columns", lambda a: a[:2], r"shape \[3, 3, 4\]"),
    ("vnm", "columns", lambda a: a.int(), "must be uint8"),
    ("nmg", "columns", lambda a: a + 1, "outside 0 to 5"),
    ("nmg", "columns", lambda a: a - 1, "outside 0 to 5"),
    ("nmg", "columns", lambda a: a * 0, "strictly increase"),
    ("nmg", "columns", lambda a: a.flip(3), "strictly increase"),
    ("nmg", "columns", lambda a: a[:, :, :1].expand_as(a), "is missing"),
    ("nmg", "columns", lambda a: a.int(), "must be int16"),
    ("nmg", "values", lambda a: a[..., 0], "shape"),
]


@pytest.mark.parametrize(("name", "array", "damage", "message"), HOSTILE)
def test_hostile_older_arrays_are_refused_by_name(name, array, damage, message):
    text, shape = SAMPLES[name]
    arrays = OLDER[name](case(text, shape))
    with pytest.raises(FormatError, match=message) as caught:
        decode(name, {**arrays, array: damage(arrays[array])}, shape, parse_pattern(text), "w")
    assert str(caught.value).startswith("w")


@pytest.mark.parametrize("name", SAMPLES)
def test_arrays_of_both_kinds_are_refused(name):
    text, shape = SAMPLES[name]
    matrix = case(text, shape)
    both = {**OLDER[name](matrix), **encode(matrix, name)[1]}
    with pytest.raises(FormatError, match="unknown arrays"):
        decode(name, both, shape, matrix.pattern)
