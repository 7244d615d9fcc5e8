# SPDX-License-Identifier: Apache-2.0
"""The rules every storage format keeps, as one function that raises at the first breach."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gossamer.errors import FormatError, PatternError
from gossamer.formats import FORMATS, Arrays, Format, SparseMatrix
from gossamer.formats.matrix import VALUE_DTYPES
from gossamer.patterns import NM, NMG, VNM, Block, Pattern, Unstructured

SAMPLE_PATTERNS: tuple[Pattern, ...] = (
    Unstructured(),
    *(NM(2, 4), NM(1, 16), NM(3, 3), NM(5, 20)),
    *(VNM(1, 4), VNM(4, 8), VNM(3, 40)),
    *(NMG(2, 4, 2), NMG(1, 3, 1)),
    *(Block(1, 1), Block(2, 3), Block(4, 4)),
)
# Rounded up to what a pattern needs: nothing, one weight, remainders, several tiles.
_SHAPES = ((0, 0), (0, 5), (5, 0), (1, 1), (1, 17), (17, 1), (7, 13), (9, 48))
_DENSITIES = (0.02, 0.3, 1.0)
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_format(name: str, patterns: Sequence[Pattern] = SAMPLE_PATTERNS) -> None:
    """Raise FormatError at the first rule that the registered format `name` breaks.

    Round trips of every supported pattern on edge shapes, types and special values, the formula of
    `nbytes`, and that `decode` takes what `encode` gives and refuses what was damaged. Pass
    `patterns` where the format stores only a pattern of your own.
    """
    chosen = FORMATS.get(name)
    if chosen.name != name:
        raise FormatError(f"format {name!r}: its attribute `name` says {chosen.name!r}.")
    supported = [pattern for pattern in patterns if chosen.supports(pattern)]
    if not supported:
        raise FormatError(
            f"format {name!r}: supports none of {', '.join(map(str, patterns))}. Name the patterns"
            " to test: check_format(name, patterns=[...])."
        )
    for pattern in supported:
        for shape in dict.fromkeys(pattern.padded_shape(shape) for shape in _SHAPES):
            for label, mask in sample_masks(pattern, shape):
                case = f"format {name!r}, pattern {pattern}, shape {list(shape)}, {label} kept"
                for dtype in VALUE_DTYPES:
                    _check_round_trip(chosen, pattern, mask, _weight(shape, dtype), case)
                _check_damage(chosen, pattern, mask, case)


def sample_masks(pattern: Pattern, shape: tuple[int, int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Legal masks: scattered, crowded into the first rows, without ties to break, all, none."""
    scattered = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    crowded = torch.arange(shape[0], 0.0, -1.0).unsqueeze(1).expand(shape)
    fixed = pattern.fixed_density
    for density in _DENSITIES if fixed is None else (fixed,):
        yield f"{density:.0%} scattered", pattern.project(scattered, density)
        yield f"{density:.0%} of the first rows", pattern.project(crowded, density)
    for label, keep in (("all", True), ("none", False)):
        mask = torch.full(shape, keep)
        try:
            pattern.validate(mask)
        except PatternError:
            continue
        yield label, mask


def _weight(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Every kind of bits a value can have, each several times: zeros, NaN payloads, infinities."""
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.5, -1e-7], dtype=dtype)
    bits = _BITS[dtype.itemsize]
    limits = torch.iinfo(bits)
    numbers = torch.randint(
        limits.min, limits.max, (61,), dtype=bits, generator=torch.Generator().manual_seed(2)
    )
    pool = torch.cat([special, numbers.view(dtype)])
    return pool[torch.arange(shape[0] * shape[1]) % len(pool)].view(shape)


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    bits = _BITS[right.element_size()]
    return (
        left.dtype is right.dtype
        and left.shape == right.shape
        and torch.equal(left.contiguous().view(bits), right.contiguous().view(bits))
    )


def _check_round_trip(
    chosen: Format, pattern: Pattern, mask: torch.Tensor, weight: torch.Tensor, case: str
) -> None:
    case = f"{case}, {str(weight.dtype).removeprefix('torch.')}"
    shape = (mask.shape[0], mask.shape[1])
    for label, source in (("", weight), (" of a transposed weight", weight.T.contiguous().T)):
        matrix = SparseMatrix.from_dense(source, mask, pattern)
        before = matrix.values.clone()
        with _told(f"{case}: encode{label}"):
            arrays = chosen.encode(matrix)
        if not _same_bits(matrix.values, before) or not torch.equal(matrix.mask(), mask):
            raise FormatError(f"{case}: encode changed its input.")
        if "values" not in arrays or arrays["values"].dtype is not weight.dtype:
            raise FormatError(f"{case}: encode must give `values` in the weight's dtype.")
        actual = sum(array.nbytes for array in arrays.values())
        formula = chosen.nbytes(shape, int(mask.sum()), weight.element_size(), pattern)
        if actual != formula:
            raise FormatError(f"{case}: nbytes says {formula}, but the arrays take {actual} bytes.")
        with _told(f"{case}: decode of what was encoded"):
            again = chosen.decode(arrays, shape, pattern)
        if not torch.equal(again.mask(), mask):
            raise FormatError(f"{case}: decode{label} gives another mask.")
        if not _same_bits(again.values, before):
            raise FormatError(f"{case}: decode{label} gives other bits than were kept.")


def _check_damage(chosen: Format, pattern: Pattern, mask: torch.Tensor, case: str) -> None:
    """Wrong sets of arrays must be refused; wrong numbers refused, or be a legal matrix."""
    shape = (mask.shape[0], mask.shape[1])
    arrays = chosen.encode(SparseMatrix.from_dense(_weight(shape, torch.float32), mask, pattern))

    def decoded(label: str, damaged: Arrays) -> SparseMatrix | None:
        """The matrix, None if it was refused; any other error is a failure of the format."""
        try:
            return chosen.decode(damaged, shape, pattern)
        except FormatError:
            return None
        except Exception as error:
            raise FormatError(
                f"{case}: {label}: decode raised {type(error).__name__} instead of FormatError:"
                f" {error}"
            ) from error

    for label, damaged in _wrong_arrays(arrays):
        if decoded(label, damaged) is not None:
            raise FormatError(f"{case}: decode accepts arrays with {label}.")
    for label, damaged in _wrong_numbers(arrays):
        matrix = decoded(label, damaged)
        if matrix is None:
            continue
        if matrix.shape != shape or int(matrix.mask().sum()) != matrix.nnz:
            raise FormatError(f"{case}: decode gives another shape with {label}.")
        with _told(f"{case}: decode accepts {label}; the pattern's check of the mask"):
            pattern.validate(matrix.mask())


def _wrong_arrays(arrays: Arrays) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    yield "an unknown array", {**arrays, "unexpected": torch.zeros(1)}
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        yield f"{name!r} missing", others
        other_dtype = torch.int32 if array.is_floating_point() else torch.float32
        wrong = {f"as {other_dtype}": array.to(other_dtype), "of one dimension more": array[None]}
        if array.ndim and array.shape[0]:
            wrong["cut short"] = array[:-1]
            wrong["too long"] = torch.cat([array, array[-1:]])
        for label, damaged in wrong.items():
            yield f"{name!r} {label}", {**others, name: damaged}


def _wrong_numbers(arrays: Arrays) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    for name, array in arrays.items():
        if array.is_floating_point() or not array.numel():
            continue
        limits = torch.iinfo(array.dtype)
        wide = array.long()
        bumped = wide.clone()
        bumped.view(-1)[0] = min(int(bumped.view(-1)[0]) + 1, limits.max)
        damaged = {
            "all zero": torch.zeros_like(wide),
            "all at the maximum": torch.full_like(wide, limits.max),
            "all at the minimum": torch.full_like(wide, limits.min),
            "its first number one higher": bumped,
            "its numbers reversed": wide.flip(tuple(range(wide.ndim))),
            "random numbers": torch.randint(
                limits.min, limits.max, array.shape, generator=generator
            ),
        }
        for label, numbers in damaged.items():
            yield f"{label} in {name!r}", {**arrays, name: numbers.to(array.dtype)}


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What a plug-in's function raises becomes a FormatError that names it."""
    try:
        yield
    except Exception as error:
        raise FormatError(f"{what} raised {type(error).__name__}: {error}") from error
