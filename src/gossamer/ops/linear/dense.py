# SPDX-License-Identifier: Apache-2.0
"""Dense products in int8 and bf16, by torch's own libraries: what zeros have to beat.

They gain nothing from zeros. They stand in the list so that no layer is slower than a dense one of
the precision that the user allowed.

The int8 numbers are those of `int8.py`: one scale per output row and one per token, exact integer
sums, the same rules for NaN and for tokens that are almost zero. oneDNN is given the bytes; FBGEMM,
which is faster for few tokens, quantises by itself, with one scale for the whole input. It gets
integers as floats, and one more token with the two ends of their range: its scale is then 1, and
what it rounds is integer already.

bf16 products are added in float32 and rounded to bf16, as torch rounds them, before the bias is
added.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import functools
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear.int8 import MAX_COLUMNS
from gossamer.ops.linear.packed_weight import PackedWeight, refuse_unusable

# FBGEMM reads the weight once for so few tokens; for more oneDNN is faster wherever it was tried.
_FEW = 16
_ROWS_AT_ONCE = 1024  # that are rounded in float64
_ENGINE = threading.Lock()
_IS_CHILD = False

# Of an input [T, K]: the product [T, R], and what each token of it is still to be scaled by.
Product = Callable[[Tensor], tuple[Tensor, Tensor | None]]

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": torch.relu_,
    "gelu": F.gelu,
    "silu": F.silu,
    "quick_gelu": lambda y: y * torch.sigmoid(1.702 * y),
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


def _become_child() -> None:
    global _IS_CHILD
    _IS_CHILD = True


# The threads of torch's pool are those of the parent; a product in the child would wait for them.
os.register_at_fork(after_in_child=_become_child)


@contextmanager
def _on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Facts:
    """What a native weight says of itself."""

    rows: int
    columns: int
    kept: int
    nbytes: int
    is_lossless: bool = False


class DenseWeight(PackedWeight):
    """A weight with its zeros, packed by a library of torch.

    Args:
        matrix: what is packed.
        kernel: its name.
        nbytes: of the packed form.
        product: computes with it.
    """

    def __init__(self, matrix: SparseMatrix, kernel: str, nbytes: int, product: Product) -> None:
        facts: Any = _Facts(*matrix.shape, matrix.nnz, nbytes)
        super().__init__(facts, kernel)
        self._product = product
        self._set = active_kernels()

    def _run(self, x: Tensor, start: int, bias_start: int, activation: str) -> Tensor:
        num_rows, num_columns = self.shape
        refuse_unusable(x, activation, num_columns)
        x_TK = x if x.ndim == 2 else x.reshape(-1, num_columns)
        if x_TK.stride(1) != 1 or x_TK.stride(0) < num_columns:
            x_TK = x_TK.contiguous()
        tokens = len(x_TK)
        if tokens == 0:
            return x.new_empty(*x.shape[:-1], num_rows)
        with _on_one_thread() if _IS_CHILD else nullcontext():
            y_TR, scales = self._product(x_TK)
            if scales is not None or bias_start:
                held = 0 if scales is None else scales.data_ptr()
                _native.finish_tokens(
                    y_TR.data_ptr(), tokens, num_rows, held, bias_start, self._set
                )
            y_TR = _FUNCTIONS[activation](y_TR)
        return y_TR if x.ndim == 2 else y_TR.view(*x.shape[:-1], num_rows)


def activation_bits() -> int:
    """8 with VNNI; without it two products are added in 16 bits, which 7 bits cannot fill."""
    return 8 if "avx512vnni" in available_extensions() else 7


def pack_dense_int8(matrix: SparseMatrix) -> DenseWeight:
    """The weight for oneDNN in int8, any number of tokens."""
    codes_RK, scales_R = _codes(matrix)
    pack = torch.ops.onednn.qlinear_prepack
    product = torch.ops.onednn.qlinear_pointwise.tensor
    bits, kernels = activation_bits(), active_kernels()
    with torch.inference_mode(False), torch.no_grad():
        packed, zeros_R = pack(codes_RK, None), torch.zeros(len(scales_R), dtype=torch.int32)
        one, zero = torch.ones(1), torch.full((1,), 1 << (bits - 1), dtype=torch.int32)
    rest: tuple[Any, ...] = (packed, scales_R, zeros_R, None, 1.0, 0, torch.float32, "none", [], "")

    def run(x_TK: Tensor) -> tuple[Tensor, Tensor]:
        tokens, columns = x_TK.shape
        bytes_TK, scales_T = (
            x_TK.new_empty(tokens, columns, dtype=torch.uint8),
            x_TK.new_empty(tokens),
        )
        _native.tokens_to_bytes(
            x_TK.data_ptr(), tokens, columns, x_TK.stride(0), bits,
            bytes_TK.data_ptr(), 0, scales_T.data_ptr(), kernels,
        )  # fmt: skip
        return product(bytes_TK, one, zero, *rest), scales_T

    return DenseWeight(matrix, "dense/onednn-int8", codes_RK.numel() + 8 * len(scales_R), run)


def pack_dense_int8_few(matrix: SparseMatrix) -> DenseWeight:
    """The weight for FBGEMM in int8, for few tokens."""
    codes_RK, scales_R = _codes(matrix)
    bits, kernels = activation_bits(), active_kernels()
    packed = _prepacked(codes_RK, scales_R)
    product = torch.ops.quantized.linear_dynamic.default

    def run(x_TK: Tensor) -> tuple[Tensor, Tensor]:
        tokens, columns = x_TK.shape
        numbers, scales_T = x_TK.new_empty(tokens + 1, columns), x_TK.new_empty(tokens)
        _native.tokens_to_bytes(
            x_TK.data_ptr(), tokens, columns, x_TK.stride(0), bits,
            0, numbers.data_ptr(), scales_T.data_ptr(), kernels,
        )  # fmt: skip
        return product(numbers, packed, bits == 7).narrow(0, 0, tokens), scales_T

    return DenseWeight(matrix, "dense/fbgemm-int8", codes_RK.numel() + 8 * len(scales_R), run)


def pack_dense_bf16(matrix: SparseMatrix) -> DenseWeight:
    """The weight for oneDNN in bf16, any number of tokens."""
    with torch.inference_mode(False), torch.no_grad():
        halves_RK = matrix.dense().bfloat16()
        packed = torch.ops.mkldnn._reorder_linear_weight(halves_RK, None)
    product = torch.ops.mkldnn._linear_pointwise.default

    def run(x_TK: Tensor) -> tuple[Tensor, None]:
        return product(x_TK.bfloat16(), packed, None, "none", [], "").float(), None

    return DenseWeight(matrix, "dense/onednn-bf16", 2 * halves_RK.numel(), run)


def _codes(matrix: SparseMatrix) -> tuple[Tensor, Tensor]:
    """The weight rounded as the other int8 kernels round it, and the scale of each row."""
    if not bool(matrix.values.isfinite().all()):
        raise KernelError(
            "dense int8 kernel: values must be finite, found NaN or infinity; they have no int8"
            " scale."
        )
    with torch.inference_mode(False), torch.no_grad():
        weight_RK = matrix.dense()
        codes_RK = torch.empty(weight_RK.shape, dtype=torch.int8)
        scales_R = torch.empty(len(weight_RK))
        for start in range(0, len(weight_RK), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            some = weight_RK[rows].double()
            top = some.abs().amax(1, keepdim=True)
            inverse = torch.where(top > 0, torch.full_like(top, 127) / top, 0.0)
            codes_RK[rows] = (some * inverse).round().to(torch.int8)
            scales_R[rows] = torch.where(top > 0, top / 127, 1.0).float().flatten()
    return codes_RK, scales_R


def _prepacked(codes_RK: Tensor, scales_R: Tensor) -> Any:
    """Codes as FBGEMM holds them. torch takes the library from a setting of the process."""
    engines = torch.backends.quantized
    zeros_R = torch.zeros(len(scales_R), dtype=torch.int64)
    with _ENGINE, warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        # These tensors are announced to leave torch; `is_offered` looks whether they are there.
        warnings.simplefilter("ignore")
        held = torch._make_per_channel_quantized_tensor(codes_RK, scales_R.double(), zeros_R, 0)
        before = engines.engine
        try:
            engines.engine = "fbgemm"
            return torch.ops.quantized.linear_prepack(held, None)
        finally:
            engines.engine = before


def _fits(problem: Problem) -> bool:
    rows, columns = problem.matrix.shape
    return bool(rows >= 1 and 2 <= columns <= MAX_COLUMNS)


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _has_onednn() -> bool:
    return _is_x86() and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _has(namespace: str, *names: str) -> bool:
    return all(hasattr(getattr(torch.ops, namespace), name) for name in names)


@functools.cache
def has_onednn_int8() -> bool:
    """Whether this torch multiplies bytes with oneDNN on this processor."""
    return _has_onednn() and _has("onednn", "qlinear_prepack", "qlinear_pointwise")


@functools.cache
def has_fbgemm_int8() -> bool:
    """Whether this torch multiplies bytes with FBGEMM on this processor."""
    return (
        _is_x86()
        and "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch, "_make_per_channel_quantized_tensor")
        and _has("quantized", "linear_prepack", "linear_dynamic")
    )


@functools.cache
def has_onednn_bf16() -> bool:
    """Whether oneDNN has instructions for bf16 here."""
    return (
        _has_onednn()
        and "avx512bf16" in available_extensions()
        and _has("mkldnn", "_reorder_linear_weight", "_linear_pointwise")
    )


KERNELS = (
    Kernel.of_matrix(
        "dense/onednn-bf16", pack_dense_bf16, _fits, "bf16", is_offered=has_onednn_bf16
    ),
    Kernel.of_matrix(
        "dense/onednn-int8", pack_dense_int8, _fits, "int8", is_offered=has_onednn_int8
    ),
    Kernel.of_matrix(
        "dense/fbgemm-int8", pack_dense_int8_few, _fits, "int8", _FEW, is_offered=has_fbgemm_int8
    ),
)
