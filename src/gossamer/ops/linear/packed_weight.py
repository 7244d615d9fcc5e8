# SPDX-License-Identifier: Apache-2.0
"""A weight packed for a native kernel: `y = act(x W^T + b)`, immutable, for inference.

Every kernel family packs its own layout (`ops/linear/panel.py` and its neighbours); all are called
alike.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable

import torch
from torch.compiler import is_compiling

from gossamer.errors import InputError, KernelError
from gossamer.formats import Positions, SparseMatrix
from gossamer.ops import _native
from gossamer.ops.addresses import address, bias_address, checked_bias_address, direct_address
from gossamer.ops.calls import Handles, call_op, define_op, refuse_onnx
from gossamer.ops.dispatch import Problem
from gossamer.ops.kernels import active_kernels
from gossamer.ops.packed import (
    ACTIVATIONS,
    Packed,
    checked_values,
    checked_weight,
    optional_array,
    refusal,
)
from gossamer.out_of_memory import is_out_of_memory, memory_error, names_memory


class PackedWeight(Packed):
    """One [R, K] weight in the layout of one kernel.

    Args:
        native: what a `_native.pack_...` function gave.
        kernel: name of the kernel family, as `explain` shows it.
    """

    def __init__(self, native: _native.PackedWeight, kernel: str) -> None:
        self._native = native
        self.kernel = kernel
        self.shape = (native.rows, native.columns)
        self.handle = _WEIGHTS.add(self)

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self._native.kept

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight in memory."""
        return self._native.nbytes

    @property
    def is_lossless(self) -> bool:
        """Whether `unpack` can give the kept values back."""
        return self._native.is_lossless

    @names_memory("unpacking a weight", "Free memory.")
    def unpack(self) -> SparseMatrix:
        """The matrix as it was packed, unstructured."""
        num_bytes = (self.shape[1] + 7) // 8
        values = torch.empty(self.nnz, dtype=torch.float32, device="cpu")
        bits = torch.empty(self.shape[0], num_bytes, dtype=torch.uint8, device="cpu")
        self._native.unpack(values.numpy(), bits.numpy())
        return SparseMatrix(Positions(bits, self.shape), values)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """act(x W^T + bias) for x [..., K], as a new [..., R] tensor; no gradients."""
        if not is_compiling():
            # Past the op layer, which costs more than a small product.
            start = direct_address(x)
            bias_start = bias_address(bias, self.shape[0]) if bias is not None else 0
            if start and (bias_start or bias is None):
                try:
                    return self._run(x, start, bias_start, activation)
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error):
                        raise
                    raise memory_error(error, "packed linear", "Run fewer tokens.") from error
        refuse_onnx("packed linear")
        seen = (self.handle, *self.shape, self.kernel, activation)
        return call_op(packed_linear, "packed linear", x, bias, *seen)

    def _run(self, x: torch.Tensor, start: int, bias_start: int, activation: str) -> torch.Tensor:
        """For x and bias at these addresses; with few steps, as layers are small."""
        num_rows, num_columns = self.shape
        code = ACTIVATIONS.get(activation)
        *leading, width = x.shape or (-1,)
        if (
            code is None
            or width != num_columns
            or x.dtype is not torch.float32
            or (x.requires_grad and torch.is_grad_enabled())
        ):
            raise _refusal(x, activation, num_columns)
        # leading.numel() costs six times as much.
        num_tokens = x.numel() // num_columns if num_columns else x.shape[:-1].numel()
        stride = num_columns
        if not x.is_contiguous():
            # Rows must be contiguous and must not overlap, as those of an expanded tensor do.
            x = x.reshape(num_tokens, num_columns)
            if x.stride(1) != 1 or x.stride(0) < num_columns:
                x = x.contiguous()
            start, stride = x.data_ptr(), x.stride(0)
        y = x.new_empty(*leading, num_rows)  # a tuple takes 1.5 times as long
        self._native.run(
            start,
            num_tokens,
            stride,
            y.data_ptr(),
            num_rows,
            bias_start,
            code,
        )
        return y


@names_memory("packing a weight", "Free memory.")
def pack_weight(
    kernel: str,
    packer: Callable[..., _native.PackedWeight],
    matrix: SparseMatrix,
    *,
    all_kept: bool = False,
    **options: object,
) -> PackedWeight:
    """Pack a sparse matrix for a kernel family, for the active kernel set.

    Args:
        kernel: name of the family.
        packer: its `_native.pack_...` function.
        matrix: float32 on the CPU.
        all_kept: the packer takes None for the mask of a weight that keeps everything.
        options: what else the packer takes.
    """
    if all_kept and matrix.positions.mask_bits is None:
        values, bits = checked_values(matrix, kernel).numpy(), None
    else:
        values, bits = (part.numpy() for part in checked_weight(matrix, matrix.shape, kernel))
    native = packer(values, bits, *matrix.shape, kernels=active_kernels(), **options)
    return PackedWeight(native, kernel)


def refuse_unusable(x: torch.Tensor, activation: str, num_columns: int) -> None:
    """InputError for what no weight of so many columns can be called with."""
    fits = x.ndim > 0 and x.shape[-1] == num_columns and x.dtype is torch.float32
    if not fits or activation not in ACTIVATIONS or (x.requires_grad and torch.is_grad_enabled()):
        raise _refusal(x, activation, num_columns)


def _refusal(x: torch.Tensor, activation: str, num_columns: int) -> InputError:
    fits = x.ndim > 0 and x.shape[-1] == num_columns
    wrong = f"the last dimension of x must be {num_columns}, got {list(x.shape)}."
    return refusal("packed linear", x, activation, "" if fits else wrong)


_WEIGHTS: Handles[PackedWeight] = Handles("packed linear")


def _fake(
    x: torch.Tensor, bias: object, handle: int, rows: int, columns: int, _: str, activation: str
) -> torch.Tensor:
    refuse_onnx("packed linear")  # strict export comes here first
    fits = x.is_cpu and x.dtype is torch.float32 and x.ndim > 0 and x.shape[-1] == columns
    if not fits:
        raise _refusal(x, activation, columns)
    return x.new_empty(*x.shape[:-1], rows)


@define_op("packed_linear", "packed linear", _fake, advice="Run fewer tokens.", has_gradients=False)
def packed_linear(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    handle: int,
    num_rows: int,
    num_columns: int,
    kernel: str,
    activation: str,
) -> torch.Tensor:
    """A call of a PackedWeight as an op that torch.compile, export and tracers can see."""
    weight = _WEIGHTS.find(handle)
    if weight.shape != (num_rows, num_columns) or weight.kernel != kernel:
        raise KernelError(
            f"packed linear: this graph was made for a weight {[num_rows, num_columns]} on kernel"
            f" {kernel}, found {list(weight.shape)} on {weight.kernel}. Export the model again."
        )
    bias_start = checked_bias_address(bias, num_rows, "packed linear")
    return weight._run(x, address(x, "packed linear"), bias_start, activation)


@packed_linear.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], x: torch.Tensor, bias: object, *rest: object
) -> tuple[torch.Tensor, int]:
    if in_dims[1] is not None:
        raise InputError("packed linear: vmap may run over its input, not over its bias.")
    x = x.movedim(in_dims[0] or 0, 0)
    return packed_linear(x, bias, *rest), 0


def pack_encoder_weight(problem: Problem, int8_layout: str = "") -> _native.PanelLinear:
    """The weight of a problem for `PackedEncoder`.

    Args:
        problem: its matrix is float32 on the CPU.
        int8_layout: "panel" or "quad", as those of `pack_int8`; empty for fp32.
    """
    matrix = problem.matrix
    rows, columns = matrix.shape
    values, bits = checked_weight(matrix, (rows, columns), "encoder")
    return _native.pack_panel_linear(
        values.numpy(),
        bits.numpy(),
        rows,
        columns,
        bias=optional_array(problem.bias),
        kernels=active_kernels(),
        int8_layout=int8_layout,
    )
