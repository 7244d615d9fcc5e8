# SPDX-License-Identifier: Apache-2.0
"""Every format against the conformance suite, random matrices and hostile arrays."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import FormatError
from gossamer.formats import FORMATS, Positions, SparseMatrix, decode, encode
from gossamer.formats.bitmask import Bitmask
from gossamer.patterns import Unstructured, parse_pattern
from gossamer.testing import check_format

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
PATTERNS = [
    *("unstructured", "1:1", "2:4", "3:7", "1:16", "4:16", "17:32", "1:2:4", "3:2:8", "4:2:100"),
    *("nmg:1:1:1", "nmg:2:4:1", "nmg:1:3:4", "block:1x1", "block:3x2", "block:1x8"),
]


def test_the_formats_that_files_name():
    assert FORMATS.names() == ["bitmask", "csr", "nm", "vnm", "nmg", "block"]


@pytest.mark.parametrize("name", FORMATS.names())
def test_own_formats_conform(name):
    check_format(name)


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from(PATTERNS),
    size=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    density=st.floats(0.001, 1.0),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    seed=st.integers(0, 999),
)
def test_round_trips_are_exact_to_the_bit(text, size, density, dtype, seed):
    pattern = parse_pattern(text)
    shape = pattern.padded_shape(size)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 5, shape, generator=generator).float()
    mask = pattern.project(scores, pattern.fixed_density or density)
    special = torch.tensor([0.0, -0.0, inf, -inf, nan, 1.0, -2.5], dtype=dtype)
    weight = special[torch.randint(0, len(special), shape, generator=generator)]
    expected = torch.where(mask, weight, torch.zeros((), dtype=dtype))
    for name in FORMATS.names():
        if FORMATS.get(name).supports(pattern):
            _, arrays = encode(SparseMatrix.from_dense(weight, mask, pattern), name)
            again = decode(name, arrays, shape, pattern)
            assert torch.equal(again.mask(), mask), name
            bits = BITS[dtype.itemsize]
            assert torch.equal(again.dense().view(bits), expected.view(bits)), name
            nnz, stored = int(mask.sum()), sum(array.nbytes for array in arrays.values())
            assert stored == FORMATS.get(name).nbytes(shape, nnz, dtype.itemsize, pattern)


def example(text, shape, name):
    pattern = parse_pattern(text)
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(8))
    mask = pattern.project(scores, pattern.fixed_density or 0.5)
    _, arrays = encode(SparseMatrix.from_dense(scores, mask, pattern), name)
    return shape, pattern, arrays


SAMPLES = {
    "bitmask": ("unstructured", (5, 13)),
    "csr": ("unstructured", (5, 13)),
    "nm": ("3:8", (5, 24)),
    "vnm": ("2:2:8", (5, 24)),
    "nmg": ("nmg:1:3:2", (6, 12)),
    "block": ("block:2x3", (8, 12)),
}

# format, array, what becomes of it, what the error says.
HOSTILE = [
    ("bitmask", "bitmask", lambda a: a | 0x80, "padding bits"),
    ("bitmask", "bitmask", lambda a: a & 0x0F, "keeps .* but there are 32 values"),
    ("bitmask", "bitmask", lambda a: a[:, :1], r"shape \[5, 2\]"),
    ("bitmask", "bitmask", lambda a: a.to(torch.int8), "must be uint8"),
    ("bitmask", "values", lambda a: a[:-1], "there are 31 values"),
    ("bitmask", "values", lambda a: a.view(4, 8), r"shape \[any\]"),
    ("bitmask", "values", lambda a: a.int(), "must be float32"),
    ("bitmask", "values", lambda a: a.sum(), r"got \[\]"),
    ("csr", "columns", lambda a: torch.full_like(a.int(), 13).to(a.dtype), "outside 0 to 12"),
    ("csr", "columns", lambda a: torch.full_like(a.int(), 65535).to(a.dtype), "outside"),
    ("csr", "columns", lambda a: torch.zeros_like(a), "strictly increase"),
    ("csr", "columns", lambda a: a.int().flip(0).to(a.dtype), "strictly increase"),
    ("csr", "columns", lambda a: a.to(torch.int16), "must be uint16"),
    ("csr", "columns", lambda a: a[:-1], r"shape \[32\]"),
    ("csr", "row_pointers", lambda a: a - 1, "from 0 to 32, found -1"),
    ("csr", "row_pointers", lambda a: a + 2**30, "from 0 to 32"),
    ("csr", "row_pointers", lambda a: a[[0, 1, 5, 3, 4, 5]], "decrease"),
    ("csr", "row_pointers", lambda a: torch.tensor([0, -9, 99, -(2**31), 7, 32]).int(), "decrease"),
    ("csr", "row_pointers", lambda a: torch.tensor([0, 32, 32, 32, 32, 32]).int(), "increase"),
    ("csr", "row_pointers", lambda a: a[:-1], r"shape \[6\]"),
    ("csr", "row_pointers", lambda a: a.long(), "must be int32"),
    ("csr", "row_pointers", lambda a: a.new_empty(0), r"shape \[6\]"),
    ("csr", "values", lambda a: a[:-1], r"shape \[31\]"),
    (
        "nm",
        "choices",
        lambda a: torch.cat([a[:1] | 0x3F, a[1:]]),
        "63 of group 0 is outside 0 to 55",
    ),
    ("nm", "choices", lambda a: torch.cat([a[:-1], a[-1:] | 0x80]), "padding bits"),
    ("nm", "choices", lambda a: a[:-1], r"shape \[12\]"),
    ("nm", "choices", lambda a: a.short(), "must be uint8"),
    ("nm", "values", lambda a: a[..., :2], r"shape \[5, 3, 3\]"),
    ("vnm", "positions", lambda a: a * 0, r"increase, found \[0, 0\]"),
    ("vnm", "positions", lambda a: a | 0xF0, "padding bits"),
    ("vnm", "shared", lambda a: a * 0, "shared columns.*strictly increase"),
    ("vnm", "shared", lambda a: a.flip(0), "shared columns.*(increase|padding)"),
    ("vnm", "shared", lambda a: torch.cat([a[:-1], a[-1:] | 0xF0]), "columns.*padding bits"),
    ("vnm", "shared", lambda a: a[:2], r"shape \[14\]"),
    ("vnm", "shared", lambda a: a.int(), "must be uint8"),
    ("nmg", "choices", lambda a: a | 0x03, "choice 3 of group 0 is outside 0 to 2"),
    ("nmg", "choices", lambda a: a * 0, "each row pattern in 2 columns, but uses number 0 in 6"),
    ("nmg", "choices", lambda a: a[:-1], r"shape \[6\]"),
    ("nmg", "choices", lambda a: a.int(), "must be uint8"),
    ("nmg", "values", lambda a: a[..., 0], "shape"),
    ("block", "block_columns", lambda a: a + 4, "outside 0 to 3"),
    ("block", "block_columns", lambda a: a - 4, "outside 0 to 3"),
    ("block", "block_columns", lambda a: a * 0, "strictly increase"),
    ("block", "block_columns", lambda a: a.long(), "must be int32"),
    ("block", "block_row_pointers", lambda a: a * 2, "from 0 to 8"),
    ("block", "block_row_pointers", lambda a: torch.tensor([0, 9, 2, 3, 8]).int(), "decrease"),
    ("block", "block_row_pointers", lambda a: a[1:], r"shape \[5\]"),
    ("block", "values", lambda a: a[:-1], r"shape \[7\]"),
    ("block", "values", lambda a: a.transpose(1, 2), r"shape \[any, 2, 3\]"),
]


@pytest.mark.parametrize(("name", "array", "damage", "message"), HOSTILE)
def test_hostile_arrays_are_refused_by_name(name, array, damage, message):
    shape, pattern, arrays = example(*SAMPLES[name], name)
    damaged = {**arrays, array: damage(arrays[array])}
    with pytest.raises(FormatError, match=message) as caught:
        decode(name, damaged, shape, pattern, "layer.weight")
    assert str(caught.value).startswith("layer.weight")


@pytest.mark.parametrize("name", SAMPLES)
def test_missing_and_unknown_arrays_are_refused(name):
    shape, pattern, arrays = example(*SAMPLES[name], name)
    for missing in arrays:
        rest = {key: value for key, value in arrays.items() if key != missing}
        with pytest.raises(FormatError, match=f"'{missing}' is missing"):
            decode(name, rest, shape, pattern)
    more = {**arrays, "scale": torch.ones(1)}
    with pytest.raises(FormatError, match=r"unknown arrays \['scale'\]"):
        decode(name, more, shape, pattern)


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [("2:4", (3, 8), "bitmask"), ("2:4", (3, 8), "csr"), ("2:2:8", (4, 16), "bitmask")],
)
def test_general_formats_check_the_pattern_that_they_claim(text, shape, name):
    _, _, arrays = example("unstructured", shape, name)
    with pytest.raises(FormatError, match=f"w.*{text}"):
        decode(name, arrays, shape, parse_pattern(text), "w")


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [
        ("unstructured", (1, 2**40), "csr"),
        ("2:4", (1, 2**31), "csr"),
        ("2:4", (2**40, 2**40), "bitmask"),
        ("2:4", (2**40, 2**40), "nm"),
        ("64:2:8", (2**40, 2**40), "vnm"),
        ("nmg:1:2:1", (2**40, 2**40), "nmg"),
        ("block:1x1", (2**40, 2**40), "block"),
    ],
)
def test_a_huge_shape_over_small_arrays_is_refused_before_anything_is_allocated(text, shape, name):
    small = {"csr": (1, 4), "nm": (1, 4), "vnm": (1, 8), "bitmask": (1, 4)}.get(name, (2, 2))
    _, _, arrays = example(text, small, name)
    with pytest.raises(FormatError):
        decode(name, arrays, shape, parse_pattern(text), "w")


def test_a_huge_csr_of_fixed_density_is_refused_by_its_count():
    arrays = {
        "values": torch.zeros(0),
        "columns": torch.zeros(0, dtype=torch.int32),
        "row_pointers": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(FormatError, match="keeps 1073741824 weights"):
        decode("csr", arrays, (1, 2**31), parse_pattern("2:4"), "w")


@pytest.mark.parametrize("text", ["unstructured", "2:4", "64:2:8", "nmg:1:2:1", "block:1x1"])
@pytest.mark.parametrize("long_side", [0, 1])
def test_a_huge_side_beside_an_empty_one_costs_nothing(text, long_side):
    pattern = parse_pattern(text)
    shape = (2**40, 0) if long_side == 0 else (0, 2**31)
    weight = torch.zeros(shape)
    for name in FORMATS.names():
        needs_row_pointers = long_side == 0 and name in ("csr", "block")
        if FORMATS.get(name).supports(pattern) and not needs_row_pointers:
            _, arrays = encode(SparseMatrix.from_dense(weight, weight.bool(), pattern), name)
            again = decode(name, arrays, shape, pattern)
            assert again.dense().shape == again.mask().shape == shape


class Forgetful(Bitmask):
    """Multiplies by the mask: NaN and -0.0 are lost."""

    name = "broken"

    def decode(self, arrays, shape, pattern, where="tensor"):
        matrix = super().decode(arrays, shape, pattern, where)
        return replace(matrix, values=matrix.values + 0.0)


class Trusting(Bitmask):
    """Accepts anything."""

    name = "broken"

    def decode(self, arrays, shape, pattern, where="tensor"):
        """No check."""
        return SparseMatrix(Positions(arrays.get("bitmask"), shape, pattern), arrays["values"])


class Crashing(Bitmask):
    """Meets a damaged array with an error of its own."""

    name = "broken"

    def decode(self, arrays, shape, pattern, where="tensor"):
        _ = arrays["values"].shape
        return super().decode(arrays, shape, pattern, where)


class Boasting(Bitmask):
    """Claims to be smaller than it is."""

    name = "broken"

    def nbytes(self, shape, nnz, itemsize, pattern):
        return nnz * itemsize


class Inferring(Bitmask):
    """Takes the mask from the zeros, so that a kept zero is dropped."""

    name = "broken"

    def decode(self, arrays, shape, pattern, where="tensor"):
        matrix = super().decode(arrays, shape, pattern, where)
        return SparseMatrix.from_dense(matrix.dense())


class Scribbling(Bitmask):
    """Changes the weight that it encodes."""

    name = "broken"

    def encode(self, matrix):
        arrays = {name: array.clone() for name, array in super().encode(matrix).items()}
        matrix.values.zero_()
        return arrays


class Hollow(Bitmask):
    """Stores nothing that is tested."""

    name = "broken"

    def supports(self, pattern):
        return False


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Forgetful, "other bits than were kept"),
        (Trusting, "decode accepts arrays with an unknown array"),
        (Crashing, "decode raised KeyError instead of FormatError"),
        (Boasting, "nbytes says"),
        (Inferring, "another mask"),
        (Scribbling, "changed its input"),
        (Hollow, "supports none of"),
        (Bitmask, "attribute `name` says 'bitmask'"),
    ],
)
def test_the_suite_catches_broken_formats(broken, message):
    FORMATS.add("broken", broken())
    try:
        with pytest.raises(FormatError, match=message):
            check_format("broken")
    finally:
        FORMATS.remove("broken")


def test_the_suite_accepts_patterns_of_the_caller():
    check_format("bitmask", patterns=[Unstructured()])
