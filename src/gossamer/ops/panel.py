# SPDX-License-Identifier: Apache-2.0
"""The native panel kernel behind `y = act(x W^T + b)` for any mask, fp32, many tokens or few.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import weakref

import torch

from gossamer.errors import InputError, KernelError
from gossamer.formats.bits import check_bits
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}


class PanelWeight:
    """Kept fp32 values of one [R, K] weight, packed once for the kernel and immutable from then on.

    Args:
        values: row-major kept values, float32 on the CPU.
        mask_bits: packed mask [R, ceil(K/8)].
        shape: (R, K).
    """

    kernel = "panel"

    def __init__(
        self, values: torch.Tensor, mask_bits: torch.Tensor, shape: tuple[int, int]
    ) -> None:
        if values.dtype is not torch.float32 or values.device.type != "cpu":
            raise KernelError(
                f"panel kernel: values must be float32 on the CPU, got {values.dtype} on"
                f" {values.device}. Convert with .float(), or keep the layer in mode 'jit'."
            )
        check_bits(mask_bits, shape, "panel kernel")
        self._panel = _native.Panel(
            values.detach().contiguous().numpy(), mask_bits.contiguous().numpy(), *shape
        )
        self.shape = shape
        self.handle = _remember(self)

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self._panel.kept

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight in memory."""
        return self._panel.nbytes

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(values, mask_bits) in canonical row-major order, as they were packed."""
        values = torch.empty(self.nnz, dtype=torch.float32)
        bits = torch.empty(self.shape[0], (self.shape[1] + 7) // 8, dtype=torch.uint8)
        self._panel.unpack(values.numpy(), bits.numpy())
        return values, bits

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """act(x W^T + bias) for x [..., K], as a new [..., R] tensor; no gradients."""
        if torch.compiler.is_compiling():
            y: torch.Tensor = packed_linear(x, bias, self.handle, self.shape[0], activation)
            return y
        return self.linear(x, bias, activation)

    def __deepcopy__(self, memo: dict[int, object]) -> "PanelWeight":
        return self  # immutable: copies of a model share it

    def __reduce__(self) -> str:
        raise KernelError(
            "a packed weight lives in one process and cannot be pickled. Save the model with"
            " gossamer.save and compile it again after loading."
        )

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
        """The eager path of a call: past the op layer, which costs more than a small product."""
        _check_input(x, bias, activation, self.shape)
        num_rows, num_columns = self.shape
        x_TK = x.reshape(x.shape[:-1].numel(), num_columns)
        # Rows must be contiguous and must not overlap, as those of an expanded tensor do.
        if x_TK.stride(1) != 1 or x_TK.stride(0) < num_columns:
            x_TK = x_TK.contiguous()
        y_TR = x.new_empty(x_TK.shape[0], num_rows)
        self._panel.run(
            x_TK.data_ptr(),
            x_TK.shape[0],
            max(x_TK.stride(0), num_columns),
            y_TR.data_ptr(),
            num_rows,
            0 if bias is None else bias.data_ptr(),
            ACTIVATIONS[activation],
            active_kernels(),
        )
        return y_TR.view(*x.shape[:-1], num_rows)


def _check_input(
    x: torch.Tensor, bias: torch.Tensor | None, activation: str, shape: tuple[int, int]
) -> None:
    if x.dtype is not torch.float32 or x.device.type != "cpu" or x.layout is not torch.strided:
        raise InputError(
            f"packed linear: x must be a dense float32 tensor on the CPU, got {x.dtype} on"
            f" {x.device}. Convert it with x.float().cpu(), or run the uncompiled model."
        )
    if x.ndim == 0 or x.shape[-1] != shape[1]:
        raise InputError(
            f"packed linear: the last dimension of x must be {shape[1]}, got {list(x.shape)}."
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "packed linear: a compiled model is for inference and gives no gradients. Call it under"
            " torch.inference_mode(), or train the model it was compiled from."
        )
    if bias is not None and (
        bias.dtype is not torch.float32
        or bias.shape != (shape[0],)
        or bias.device.type != "cpu"
        or not bias.is_contiguous()
    ):
        raise InputError(
            f"packed linear: bias must be contiguous float32 [{shape[0]}] on the CPU, got"
            f" {bias.dtype} {list(bias.shape)} on {bias.device}."
        )
    if activation not in ACTIVATIONS:
        raise InputError(
            f"packed linear: activation must be one of {', '.join(ACTIVATIONS)};"
            f" got {activation!r}."
        )


# Custom ops take tensors and numbers only, so a packed weight goes through them as a number. The
# table does not keep weights alive.
_WEIGHTS: "weakref.WeakValueDictionary[int, PanelWeight]" = weakref.WeakValueDictionary()


def _remember(weight: PanelWeight) -> int:
    handle = id(weight)
    _WEIGHTS[handle] = weight
    return handle


@torch.library.custom_op("gossamer::packed_linear", mutates_args=())
def packed_linear(
    x: torch.Tensor, bias: torch.Tensor | None, handle: int, num_rows: int, activation: str
) -> torch.Tensor:
    """`PanelWeight.linear` as an op that torch.compile and export can see."""
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
