# SPDX-License-Identifier: Apache-2.0
"""The rules every sparsifier of intermediate tensors keeps.

Entries stay as they are or become zero; nothing else changes, and what the sparsifier says about
its scope is true, so that it may work inside an operator.
"""

from collections.abc import Iterator, Sequence

import torch

from gossamer.errors import InputError
from gossamer.ops.sparsifiers import Sparsifier, parse_sparsifier, sparsify

_SHAPES = ((0,), (1,), (7,), (0, 48), (1, 48), (12, 48), (5, 48), (2, 3, 48), (64, 96))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_sparsifier(text: str, shapes: Sequence[tuple[int, ...]] = _SHAPES) -> None:
    """Raise InputError at the first rule that the sparsifier `text` breaks.

    Every shape that it takes, floating point types, strided tensors, NaN and infinity; gradients;
    parts of a tensor, as its scope allows; torch.compile without a break, and torch.export.
    """
    sparsifier = parse_sparsifier(text)
    if str(parse_sparsifier(str(sparsifier))) != str(sparsifier):
        raise InputError(f"sparsifier {text!r}: its text {str(sparsifier)!r} gives another one.")
    checked = False
    for shape in shapes:
        try:
            sparsifier.check_shape(shape, f"sparsifier {text!r}")
        except InputError:
            continue
        checked = True
        for dtype in _DTYPES:
            for label, x in _tensors(shape, dtype):
                _check_entries(sparsifier, x, f"sparsifier {text!r}, {label}, {dtype}")
        x = _random(shape, torch.float32)
        _check_gradient(sparsifier, x)
        _check_scope(sparsifier, x)
    if not checked:
        raise InputError(
            f"sparsifier {text!r}: takes none of the shapes {', '.join(map(str, shapes))}."
            " Name some: check_sparsifier(..., shapes=[...])."
        )
    _check_tracers(sparsifier, next(s for s in shapes[::-1] if _takes(sparsifier, s)))


def _takes(sparsifier: Sparsifier, shape: tuple[int, ...]) -> bool:
    try:
        sparsifier.check_shape(shape, "")
    except InputError:
        return False
    return True


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def _tensors(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Ordinary numbers, zeros, ties, numbers that cannot be ranked, and other strides."""
    x = _random(shape, dtype)
    yield f"{list(shape)}", x
    yield f"zeros {list(shape)}", torch.zeros(shape, dtype=dtype)
    yield f"equal entries {list(shape)}", torch.full(shape, -0.5, dtype=dtype)
    if x.numel():
        for number in (torch.inf, -torch.inf, torch.nan):
            odd = x.clone()
            odd.view(-1)[x.numel() // 2] = number
            yield f"{list(shape)} with one {number}", odd
    wide = torch.stack([x, -x], dim=-1)
    yield f"strided {list(shape)}", wide[..., 1]


def _check_entries(sparsifier: Sparsifier, x: torch.Tensor, case: str) -> None:
    before = x.clone()
    y = sparsify(x, sparsifier)
    if not torch.equal(x.nan_to_num(nan=7.0), before.nan_to_num(nan=7.0)):
        raise InputError(f"{case}: the sparsifier changed its input.")
    if y.shape != x.shape or y.dtype is not x.dtype:
        raise InputError(f"{case}: {list(x.shape)} became {y.dtype} {list(y.shape)}.")
    same = (y == x) | (y.isnan() & x.isnan())
    if not bool((same | (y == 0)).all()):
        raise InputError(f"{case}: an entry is neither as it was nor zero.")
    if sparsifier.is_random:
        return
    if not torch.equal(sparsify(x, sparsifier).nan_to_num(nan=7.0), y.nan_to_num(nan=7.0)):
        raise InputError(f"{case}: two calls differ; a random sparsifier says is_random=True.")
    if bool(x.isnan().any()) and bool((y != 0).any()) and not bool(y.isnan().any()):
        raise InputError(f"{case}: NaN became zero, which hides it; keep what is not a number.")


def _check_gradient(sparsifier: Sparsifier, x: torch.Tensor) -> None:
    leaf = x.clone().requires_grad_()
    y = sparsify(leaf, sparsifier)
    (grad,) = torch.autograd.grad(y, leaf, torch.full_like(y, 3.0))
    # Where an entry that stays is zero itself, both gradients are right.
    wrong = (grad != torch.where(y != 0, 3.0, 0.0)) & (x != 0)
    if bool(wrong.any()):
        raise InputError(
            f"sparsifier {sparsifier}, {list(x.shape)}: the gradient is not the mask's."
        )


def _check_scope(sparsifier: Sparsifier, x: torch.Tensor) -> None:
    """Parts of a tensor are treated as in the whole, if the scope says that they are."""
    if sparsifier.scope == "materialising" or sparsifier.is_random or x.ndim != 2 or not x.numel():
        return
    rows, columns = sparsifier.block
    whole = sparsify(x, sparsifier)
    for part in (
        (slice(None), slice(0, columns)),
        (slice(None), slice(columns, None)),
        (slice(0, rows), slice(None)),
        (slice(rows, None), slice(None)),
    ):
        if not torch.equal(sparsify(x[part].clone(), sparsifier), whole[part]):
            raise InputError(
                f"sparsifier {sparsifier}, {list(x.shape)}: it is said to be {sparsifier.scope},"
                " but treats a part of a tensor other than the same part of the whole."
            )


class _Alone(torch.nn.Module):
    def __init__(self, sparsifier: Sparsifier) -> None:
        super().__init__()
        self.sparsifier = sparsifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sparsify(x, self.sparsifier)


def _check_tracers(sparsifier: Sparsifier, shape: tuple[int, ...]) -> None:
    x, model = _random(shape, torch.float32), _Alone(sparsifier)
    # Every sparsifier is a graph of its own of the same forward.
    with torch._dynamo.config.patch(recompile_limit=1000):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    exported = torch.export.export(model, (x,)).module()(x)
    for label, y in (("torch.compile", compiled), ("torch.export", exported)):
        if y.shape != x.shape or (not sparsifier.is_random and not torch.equal(y, model(x))):
            raise InputError(f"sparsifier {sparsifier}: {label} gives another result.")
