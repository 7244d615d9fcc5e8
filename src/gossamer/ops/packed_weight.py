# SPDX-License-Identifier: Apache-2.0
"""A weight packed for a native kernel: `y = act(x W^T + b)`, immutable, for inference.

Every kernel family packs its own layout (`ops/panel.py` and its neighbours); all are called alike.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import weakref
from collections.abc import Callable

import torch

from gossamer.errors import InputError, KernelError
from gossamer.formats.bits import check_bits
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}


class PackedWeight:
    """One [R, K] weight in the layout of one kernel.

    Args:
        native: what a `_native.pack_...` function gave.
        kernel: name of the kernel family, as `explain` shows it.
    """

    def __init__(self, native: _native.PackedWeight, kernel: str) -> None:
        self._native = native
        self.kernel = kernel
        self.shape = (native.rows, native.columns)
        self.handle = _remember(self)

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

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(values, mask_bits) in canonical row-major order, as they were packed."""
        values = torch.empty(self.nnz, dtype=torch.float32)
        bits = torch.empty(self.shape[0], (self.shape[1] + 7) // 8, dtype=torch.uint8)
        self._native.unpack(values.numpy(), bits.numpy())
        return values, bits

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """act(x W^T + bias) for x [..., K], as a new [..., R] tensor; no gradients."""
        if torch.compiler.is_compiling():
            y: torch.Tensor = packed_linear(x, bias, self.handle, self.shape[0], activation)
            return y
        return self.linear(x, bias, activation)

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedWeight":
        return self  # immutable: copies of a model share it

    def __reduce__(self) -> str:
        raise KernelError(
            "a packed weight lives in one process and cannot be pickled. Save the model with"
            " gossamer.save and compile it again after loading."
        )

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
        """The eager path of a call: past the op layer, which costs more than a small product."""
        num_rows, num_columns = self.shape
        code = ACTIVATIONS.get(activation)
        if code is None or not _is_usable(x, bias, self.shape):
            raise _refusal(x, bias, activation, self.shape)
        leading = x.shape[:-1]
        # leading.numel() costs six times as much.
        num_tokens = x.numel() // num_columns if num_columns else leading.numel()
        stride = num_columns
        if not x.is_contiguous():
            # Rows must be contiguous and must not overlap, as those of an expanded tensor do.
            x = x.reshape(num_tokens, num_columns)
            if x.stride(1) != 1 or x.stride(0) < num_columns:
                x = x.contiguous()
            stride = x.stride(0)
        y = x.new_empty(*leading, num_rows)  # a tuple takes 1.5 times as long
        self._native.run(
            x.data_ptr(),
            num_tokens,
            stride,
            y.data_ptr(),
            num_rows,
            0 if bias is None else bias.data_ptr(),
            code,
        )
        return y


def pack_weight(
    kernel: str,
    packer: Callable[..., _native.PackedWeight],
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    shape: tuple[int, int],
    **options: object,
) -> PackedWeight:
    """Pack canonical arrays for a kernel family, for the active kernel set.

    Args:
        kernel: name of the family.
        packer: its `_native.pack_...` function.
        values: row-major kept values, float32 on the CPU.
        mask_bits: packed mask [R, ceil(K/8)].
        shape: (R, K).
        options: what else the packer takes.
    """
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise KernelError(
            f"{kernel} kernel: values must be float32 on the CPU, got {values.dtype} on"
            f" {values.device}. Convert with .float(), or keep the layer in mode 'jit'."
        )
    check_bits(mask_bits, shape, f"{kernel} kernel")
    arrays = values.detach().contiguous().numpy(), mask_bits.contiguous().numpy()
    native = packer(*arrays, *shape, kernels=active_kernels(), **options)
    return PackedWeight(native, kernel)


def _is_usable(x: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, int]) -> bool:
    return (
        x.dtype is torch.float32
        and x.is_cpu
        and x.layout is torch.strided
        and x.ndim > 0
        and x.shape[-1] == shape[1]
        and not (x.requires_grad and torch.is_grad_enabled())
        and (bias is None or _is_usable_bias(bias, shape[0]))
    )


def _is_usable_bias(bias: torch.Tensor, num_rows: int) -> bool:
    return (
        bias.dtype is torch.float32
        and bias.shape == (num_rows,)
        and bias.is_cpu
        and bias.is_contiguous()
    )


def _refusal(
    x: torch.Tensor, bias: torch.Tensor | None, activation: str, shape: tuple[int, int]
) -> InputError:
    """What is wrong with arguments that were found unusable."""
    if activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        return InputError(f"packed linear: activation must be one of {names}; got {activation!r}.")
    if x.dtype is not torch.float32 or not x.is_cpu or x.layout is not torch.strided:
        return InputError(
            f"packed linear: x must be a dense float32 tensor on the CPU, got {x.dtype} on"
            f" {x.device}. Convert it with x.float().cpu(), or run the uncompiled model."
        )
    if x.ndim == 0 or x.shape[-1] != shape[1]:
        return InputError(
            f"packed linear: the last dimension of x must be {shape[1]}, got {list(x.shape)}."
        )
    if bias is not None and not _is_usable_bias(bias, shape[0]):
        return InputError(
            f"packed linear: bias must be contiguous float32 [{shape[0]}] on the CPU, got"
            f" {bias.dtype} {list(bias.shape)} on {bias.device}."
        )
    return InputError(
        "packed linear: a compiled model is for inference and gives no gradients. Call it under"
        " torch.inference_mode(), or train the model it was compiled from."
    )


# Custom ops take tensors and numbers only, so a packed weight goes through them as a number. The
# table does not keep weights alive.
_WEIGHTS: "weakref.WeakValueDictionary[int, PackedWeight]" = weakref.WeakValueDictionary()


def _remember(weight: PackedWeight) -> int:
    handle = id(weight)
    _WEIGHTS[handle] = weight
    return handle


@torch.library.custom_op("gossamer::packed_linear", mutates_args=())
def packed_linear(
    x: torch.Tensor, bias: torch.Tensor | None, handle: int, num_rows: int, activation: str
) -> torch.Tensor:
    """`PackedWeight.linear` as an op that torch.compile and export can see."""
    weight = _WEIGHTS.get(handle)
    if weight is None or weight.shape[0] != num_rows:
        raise KernelError(
            "packed linear: the packed weight behind this graph no longer exists; a packed model"
            " lives in one process. Compile or export the compact model instead."
        )
    return weight.linear(x, bias, activation)


@packed_linear.register_fake
def _(
    x: torch.Tensor, bias: torch.Tensor | None, handle: int, num_rows: int, activation: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], num_rows)
