# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import FormatError, InputError, PatternError, RegistryError
from gossamer.formats import FORMATS, SparseMatrix, choose_format, decode, encode
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured


def stored(weight, mask, pattern, format=None):
    return encode(SparseMatrix.from_dense(weight, mask, pattern), format)


def nbytes(arrays):
    return sum(array.numel() * array.element_size() for array in arrays.values())


def test_kept_zero_stays_kept():
    weight, mask = torch.zeros(2, 3), torch.tensor([[True, False, True], [False, False, True]])
    name, arrays = stored(weight, mask, Unstructured())
    again = decode(name, arrays, weight.shape, Unstructured())
    assert torch.equal(again.mask(), mask)
    assert torch.equal(again.dense(), weight)


def test_arrays_are_detached_copies():
    weight = torch.ones(2, 2, requires_grad=True)
    _, arrays = stored(weight, torch.ones(2, 2, dtype=torch.bool), Unstructured())
    assert not arrays["values"].requires_grad
    with torch.no_grad():
        weight.fill_(5.0)
    assert arrays["values"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("density", "itemsize", "expected"),
    [
        *((0.5, 4, "bitmask"), (0.10, 4, "bitmask"), (0.05, 4, "csr")),
        *((0.5, 2, "bitmask"), (0.10, 2, "bitmask"), (0.05, 2, "csr")),
    ],
)
def test_the_smallest_unstructured_format_follows_the_density(density, itemsize, expected):
    nnz = round(density * 1024 * 1024)
    assert choose_format((1024, 1024), nnz, itemsize, Unstructured()) == expected


@pytest.mark.parametrize(
    ("pattern", "density", "expected"),
    [
        (NM(1, 16), 1 / 16, "nm"),
        (NM(2, 4), 1 / 2, "nm"),
        (NM(1, 2), 1 / 2, "nm"),
        (VNM(64, 16), 1 / 8, "vnm"),
        (VNM(1, 16), 1 / 8, "bitmask"),
        (NMG(1, 8, 8), 1 / 8, "nmg"),
        (NMG(1, 16, 4), 1 / 16, "nmg"),
        (Block(4, 4), 1 / 10, "block"),
        (Block(1, 1), 1 / 2, "bitmask"),
    ],
)
def test_the_smallest_format_of_a_pattern(pattern, density, expected):
    assert choose_format((1024, 1024), round(density * 2**20), 4, pattern) == expected


@settings(deadline=None, max_examples=40)
@given(
    pattern=st.sampled_from([Unstructured(), NM(2, 8), VNM(4, 8), NMG(1, 2, 2), Block(2, 4)]),
    grid=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    density=st.floats(0.01, 1.0),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_choice_is_the_smallest_of_what_is_really_stored(pattern, grid, density, dtype):
    shape = pattern.padded_shape((grid[0] * 4, grid[1] * 8))
    mask = pattern.project(torch.rand(shape), pattern.fixed_density or density)
    weight = torch.rand(shape).to(dtype)
    sizes = {
        name: nbytes(stored(weight, mask, pattern, name)[1])
        for name in FORMATS.names()
        if FORMATS.get(name).supports(pattern)
    }
    chosen, arrays = stored(weight, mask, pattern)
    assert nbytes(arrays) == min(sizes.values())
    assert sizes[chosen] == nbytes(arrays)


@pytest.mark.parametrize(
    ("weight", "mask", "message"),
    [
        (torch.ones(4), torch.ones(4, dtype=torch.bool), "2 or more dimensions"),
        (torch.ones(2, 2, 1), torch.ones(2, 2, 1, dtype=torch.bool), "weight's shape"),
        (torch.ones(2, 2).int(), torch.ones(2, 2, dtype=torch.bool), "torch.int32"),
        (torch.ones(2, 2), torch.ones(2, 3, dtype=torch.bool), "weight's shape"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool, device="meta"), "device"),
        (torch.ones(2, 2), torch.ones(2, 2), "bool mask"),
    ],
)
def test_a_matrix_refuses_what_it_cannot_hold(weight, mask, message):
    with pytest.raises(InputError, match=message):
        stored(weight, mask, Unstructured())


def test_a_matrix_refuses_masks_outside_the_pattern():
    with pytest.raises(PatternError, match="keeps 4"):
        stored(torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool), NM(2, 4))
    with pytest.raises(PatternError, match="divisible by 4"):
        stored(torch.ones(1, 6), torch.ones(1, 6, dtype=torch.bool), NM(2, 4))


def test_a_format_that_cannot_store_the_pattern_is_refused_with_those_that_can():
    mask = torch.ones(4, 4, dtype=torch.bool)
    with pytest.raises(FormatError, match=r"'nm' cannot store pattern unstructured.*bitmask, csr"):
        stored(torch.ones(4, 4), mask, Unstructured(), "nm")
    with pytest.raises(FormatError, match=r"'csr' cannot store pattern block:2x2.*bitmask, block"):
        stored(torch.ones(4, 4), mask, Block(2, 2), "csr")


def test_an_unknown_format_prints_the_stub_to_write():
    mask = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(RegistryError, match=r"class MyFormat\(Format\)") as caught:
        stored(torch.ones(1, 1), mask, Unstructured(), "bitmap")
    assert "Did you mean 'bitmask'" in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "pattern", "format", "arrays", "message"),
    [
        ((-1, 4), Unstructured(), "bitmask", {}, "negative"),
        ((1, 6), NM(2, 4), "nm", {}, "divisible by 4"),
        ((1, 4), Unstructured(), "nm", {}, "cannot store"),
        ((1, 4), Unstructured(), "bitmask", {}, "'values' is missing"),
        ((1, 4), Unstructured(), "bitmask", {"values": torch.ones(1, device="meta")}, "with data"),
        ((1, 4), Unstructured(), "bitmask", {"values": torch.ones(1).to_sparse()}, "ordinary"),
    ],
)
def test_decode_checks_the_tensor_before_its_arrays(shape, pattern, format, arrays, message):
    with pytest.raises(FormatError, match=message):
        decode(format, arrays, shape, pattern, "w")


def test_decode_validates():
    mask = torch.ones(2, 8, dtype=torch.bool)
    name, arrays = stored(torch.ones(2, 8), mask, Unstructured(), "csr")
    columns = torch.tensor([60000] * 16, dtype=torch.uint16)
    with pytest.raises(FormatError, match="outside 0 to 7"):
        decode(name, {**arrays, "columns": columns}, mask.shape, Unstructured())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), first=st.sampled_from(["bitmask", "csr"]), rows=st.integers(0, 6))
def test_conversions_commute(seed, first, rows):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, 11, generator=generator) > 0.6
    start = SparseMatrix.from_dense(torch.randn(rows, 11, generator=generator), mask)
    arrays = encode(start, first)[1]
    second = "csr" if first == "bitmask" else "bitmask"
    shape, pattern = mask.shape, Unstructured()
    other = decode(second, encode(start, second)[1], shape, pattern)
    back = encode(decode(first, encode(other, first)[1], shape, pattern), first)[1]
    assert all(torch.equal(back[name], arrays[name]) for name in arrays)
