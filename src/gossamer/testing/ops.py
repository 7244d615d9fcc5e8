# SPDX-License-Identifier: Apache-2.0
"""The rules every implementation of an operation keeps, checked against a float64 product.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, Run, kernel_list
from gossamer.patterns import Pattern
from gossamer.testing.formats import SAMPLE_PATTERNS, sample_masks
from gossamer.testing.operators import Case, check_operator

_SHAPES = ((0, 5), (1, 1), (1, 17), (17, 1), (33, 97), (130, 40))
_TOKENS = (0, 1, 7, 9, 33, 65)
_ACTIVATIONS = ("none", "relu", "gelu", "silu")


def check_op(
    operation: str,
    name: str,
    patterns: Sequence[Pattern] = SAMPLE_PATTERNS,
    *,
    cases: Sequence[Case] = (),
) -> None:
    """Raise KernelError at the first product that the kernel `name` of `operation` gets wrong.

    A name such as `csr->dense` is that of a kernel for formats of intermediate tensors: it goes
    through `cases`, or those known for the operator, forward and backward, without a fallback.

    For kernels of weights: every weight of these patterns that it accepts, edge shapes and token
    counts, bias and activations, strided and many-dimensional activations, float32. The bound is a
    few roundings of the sum of |w||x|, so a lower precision must fail.
    """
    if "->" in name:
        check_operator(operation, name, cases)
        return
    kernel = kernel_list(operation).get(name)
    generator = torch.Generator().manual_seed(4)
    checked = False
    for pattern in patterns:
        for shape in dict.fromkeys(pattern.padded_shape(shape) for shape in _SHAPES):
            for label, mask_RK in sample_masks(pattern, shape):
                weight_RK = torch.randn(shape, generator=generator)
                problem = Problem(SparseMatrix.from_dense(weight_RK, mask_RK, pattern))
                if kernel.accepts(problem):
                    checked = True
                    what = f"kernel {name!r}, pattern {pattern}, {list(shape)}, {label}"
                    _check_products(kernel.pack(problem), weight_RK * mask_RK, what, generator)
    if not checked:
        raise KernelError(
            f"kernel {name!r}: accepts none of {', '.join(map(str, patterns))}."
            " Name the patterns: check_op(..., patterns=[...])."
        )


def _check_products(
    run: Run, weight_RK: torch.Tensor, case: str, generator: torch.Generator
) -> None:
    num_rows, num_columns = weight_RK.shape
    bias = torch.randn(num_rows, generator=generator)

    def check(x: torch.Tensor, label: str, activation: str = "none") -> None:
        _check(run, x, weight_RK, bias, activation, f"{case}, {label}")

    for tokens in _TOKENS:
        x_TK = torch.randn(tokens, num_columns, generator=generator)
        _check(run, x_TK, weight_RK, None, "none", f"{case}, {tokens} tokens")
        check(x_TK, f"{tokens} tokens, bias")
    for activation in _ACTIVATIONS:
        check(torch.randn(5, num_columns, generator=generator), activation, activation)
    wide = torch.randn(2, 3, 2 * num_columns, generator=generator)
    check(wide[..., ::2], "strided columns")
    check(wide[..., :num_columns], "strided rows")
    check(torch.randn(1, num_columns, generator=generator).expand(4, -1), "overlapping rows")


def _check(
    run: Run,
    x: torch.Tensor,
    weight_RK: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    case: str,
) -> None:
    before = x.clone()
    y = run(x, bias, activation)
    if not torch.equal(x, before):
        raise KernelError(f"{case}: the op changed its input.")
    wanted = F.linear(x.double(), weight_RK.double(), None if bias is None else bias.double())
    if activation != "none":
        wanted = getattr(F, activation)(wanted)
    if y.shape != wanted.shape or y.dtype is not torch.float32:
        raise KernelError(
            f"{case}: expected float32 {list(wanted.shape)}, got {y.dtype} {list(y.shape)}."
        )
    size = F.linear(x.abs().double(), weight_RK.abs().double())
    size = size + (0.0 if bias is None else bias.abs().double())
    terms = weight_RK.shape[1] + 1
    # Rounding errors add up like sqrt(terms); the polynomials of fused activations add 4e-7.
    bound = size * (torch.finfo(torch.float32).eps * (2 + terms**0.5) + 4e-7)
    error = (y.double() - wanted).abs()
    if bool((error > bound).any()) or bool(y.isnan().any()):
        worst = float((error / bound.clamp_min(1e-30)).max())
        raise KernelError(f"{case}: wrong by {worst:.1f} times what rounding explains.")
