# SPDX-License-Identifier: Apache-2.0
"""The native convolution with sparse weights: any mask, fp32 or int8, NCHW images.

A layout is made for one height and width, so a packed weight keeps its canonical arrays and packs
once more for every new size of images; the last few are kept.

In int8 images are fp32 outside and int8 inside. Weights get one scale per output channel,
activations one per image of the batch, measured in the call over all its channels; sums are exact
integers, and so are zeros around an image. Lossy: runs only where the user asked for int8. An image
that holds a NaN or an infinity gives NaN in its whole output; an image whose values are all below
2^-120 counts as zero.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.compiler import is_compiling

from gossamer.errors import InputError, KernelError
from gossamer.formats import Positions, SparseMatrix
from gossamer.ops import _native
from gossamer.ops.addresses import address, bias_address, checked_bias_address, direct_address
from gossamer.ops.calls import Handles, call_op, define_op, refuse_onnx
from gossamer.ops.conv.settings import ConvSettings, Pair
from gossamer.ops.linear import ACTIVATION_BITS, MAX_COLUMNS
from gossamer.ops.packed import ACTIVATIONS, Packed, checked_weight, refusal
from gossamer.out_of_memory import is_out_of_memory, memory_error, names_memory

_MAX_SIZES = 8
_MAX_POSITIONS = 1024  # of a kernel: one channel's patches must stay in reach of 16-bit offsets


class PackedConv(Packed):
    """`act(conv2d(x, W) + bias)` for one sparse weight; immutable, for inference.

    Args:
        matrix: the weight seen as [R, K], float32 on the CPU.
        settings: sizes, stride, padding, dilation and groups.
    """

    kernel = "conv"
    _packer: ClassVar[Callable[..., _native.PackedConv | _native.Int8Conv]] = staticmethod(
        _native.pack_conv
    )
    _options: Mapping[str, int] = {}

    @names_memory("packing a convolution", "Free memory.")
    def __init__(self, matrix: SparseMatrix, settings: ConvSettings) -> None:
        reason = self.fault(settings, matrix)
        if reason is not None:
            raise KernelError(f"{self.kernel} kernel: {reason}.")
        values, mask_bits = checked_weight(matrix, settings.matrix_shape, self.kernel)
        positions = Positions(mask_bits, settings.weight_shape, matrix.pattern)
        self.matrix = SparseMatrix(positions, values)
        self.settings = settings
        self._num_rows, self._num_channels = settings.out_channels, settings.in_channels
        self._by_size: dict[Pair, _native.PackedConv | _native.Int8Conv] = {}
        self.handle = _WEIGHTS.add(self)

    @classmethod
    def fault(cls, settings: ConvSettings, matrix: SparseMatrix) -> str | None:
        """Why the kernel cannot run a convolution with these kept values; None if it can."""
        return cls.weight_fault(settings, matrix) or why_not(settings)

    @staticmethod
    def weight_fault(settings: ConvSettings, matrix: SparseMatrix) -> str | None:
        """Why its arithmetic cannot take the kept values; None if it can."""
        return None

    def nbytes(self, image: Pair) -> int:
        """Bytes of the packed weight for images of one size."""
        return (self._by_size.get(image) or self._pack(image)).nbytes

    def __call__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str = "none",
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W], as a new tensor; no gradients.

        `added`, of the shape of the result, is added before the activation.
        """
        if not is_compiling():
            # Past the op layer, which costs more than a small convolution.
            start = direct_address(x)
            bias_start = bias_address(bias, self._num_rows) if bias is not None else 0
            if start and (bias_start or bias is None) and (added is None or direct_address(added)):
                try:
                    return self._run(x, start, bias_start, activation, added)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    raise memory_error(error, "packed conv", "Run fewer images.") from error
        refuse_onnx("packed conv")
        seen = (self.handle, self.settings.numbers(), self.kernel, activation, added)
        return call_op(packed_conv, "packed conv", x, bias, *seen)

    def _run(
        self,
        x: torch.Tensor,
        start: int,
        bias_start: int,
        activation: str,
        added: torch.Tensor | None,
    ) -> torch.Tensor:
        """For x and bias at these addresses; with few steps, as layers are small."""
        code = ACTIVATIONS.get(activation)
        shape = x.shape
        if (
            code is None
            or len(shape) not in (3, 4)
            or shape[-3] != self._num_channels
            or x.dtype is not torch.float32
            or (x.requires_grad and torch.is_grad_enabled())
        ):
            raise _refusal(x, activation, self._num_channels)
        if not x.is_contiguous():
            x = x.contiguous()
            start = x.data_ptr()
        *leading, _, height, width = shape
        layout = self._by_size.get((height, width)) or self._pack((height, width))
        y = x.new_empty(*leading, self._num_rows, layout.out_h, layout.out_w)
        if added is not None:
            added = _checked_added(added, y)
        layout.run(
            start,
            leading[0] if leading else 1,
            y.data_ptr(),
            bias_start,
            code,
            0 if added is None else added.data_ptr(),
        )
        return y

    def _pack(self, image: Pair) -> _native.PackedConv | _native.Int8Conv:
        settings = self.settings
        if 0 in image or min(settings.out_size(image)) < 1:
            raise InputError(
                f"packed conv: images of {image[0]} x {image[1]} are too small for a kernel of"
                f" {settings.kernel_size} with padding {settings.padding} and dilation"
                f" {settings.dilation}."
            )
        arrays = self.matrix.values.numpy(), self.matrix.positions.bits().numpy()
        geometry = settings.geometry(image)
        packed = self._packer(*arrays, *self.matrix.shape, **geometry, **self._options)
        # A new dict each time: other threads may be reading the old one.
        kept = list(self._by_size.items())[1 - _MAX_SIZES :]
        self._by_size = {**dict(kept), image: packed}
        return packed


def why_not(settings: ConvSettings) -> str | None:
    """Why the kernel cannot run a convolution; None if it can."""
    if settings.even_padding() is None:
        return (
            f"it pads with equal zeros on both sides, not padding={settings.padding!r},"
            f" padding_mode={settings.padding_mode!r}"
        )
    if settings.kernel_size[0] * settings.kernel_size[1] > _MAX_POSITIONS:
        return f"it takes kernels of up to {_MAX_POSITIONS} positions, not {settings.kernel_size}"
    if not settings.out_channels or not settings.in_channels:
        return "it needs at least one channel on both sides"
    return None


def _checked_added(added: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if added.shape != y.shape or added.dtype is not torch.float32 or not added.is_cpu:
        raise InputError(
            f"packed conv: what is added must be float32 {list(y.shape)} on the CPU, got"
            f" {added.dtype} {list(added.shape)} on {added.device}."
        )
    return added.contiguous()


def _refusal(x: torch.Tensor, activation: str, channels: int) -> InputError:
    fits = x.ndim in (3, 4) and x.shape[-3] == channels
    wrong = f"x must be [N, {channels}, H, W] or [{channels}, H, W], got {list(x.shape)}."
    return refusal("packed conv", x, activation, "" if fits else wrong)


_WEIGHTS: Handles[PackedConv] = Handles("packed conv")


def _fake(
    x: torch.Tensor,
    bias: object,
    handle: int,
    numbers: list[int],
    kernel: str,
    activation: str,
    added: object = None,
) -> torch.Tensor:
    refuse_onnx("packed conv")  # strict export comes here first
    settings = ConvSettings.of_numbers(numbers)
    fits = x.is_cpu and x.dtype is torch.float32 and x.ndim in (3, 4)
    if not fits or x.shape[-3] != settings.in_channels:
        raise _refusal(x, activation, settings.in_channels)
    size = settings.out_size((x.shape[-2], x.shape[-1]))
    return x.new_empty(*x.shape[:-3], settings.out_channels, *size)


@define_op("packed_conv", "packed conv", _fake, advice="Run fewer images.", has_gradients=False)
def packed_conv(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    handle: int,
    numbers: list[int],
    kernel: str,
    activation: str,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """A call of a PackedConv as an op that torch.compile, export and tracers can see."""
    weight = _WEIGHTS.find(handle)
    if weight.settings.numbers() != numbers or weight.kernel != kernel:
        raise KernelError(
            f"packed conv: this graph was made for {numbers} on kernel {kernel}, found"
            f" {weight.settings.numbers()} on {weight.kernel}. Export the model again."
        )
    address(added, "packed conv")
    bias_start = checked_bias_address(bias, weight.settings.out_channels, "packed conv")
    return weight._run(x, address(x, "packed conv"), bias_start, activation, added)


@packed_conv.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, bias: Any, *rest: Any
) -> tuple[torch.Tensor, int]:
    if in_dims[1] is not None:
        raise InputError("packed conv: vmap may run over its images, not over its bias.")

    def flat(images: torch.Tensor, dim: int | None) -> torch.Tensor:
        """All images of all runs, [N, C, H, W]."""
        if dim is None:
            images = images[None].expand(info.batch_size, *images.shape)
        else:
            images = images.movedim(dim, 0)
        return images.reshape(-1, *images.shape[-3:])

    *seen, added = rest
    together = None if added is None else flat(added, in_dims[-1])
    y = packed_conv(flat(x, in_dims[0]), bias, *seen, together)
    has_images = x.ndim - (in_dims[0] is not None) == 4
    leading = (info.batch_size, len(y) // info.batch_size)[: 1 + has_images]
    return y.view(*leading, *y.shape[1:]), 0


class PackedInt8Conv(PackedConv):
    """`act(conv2d(x, W) + bias)` in int8 arithmetic; see PackedConv.

    Args:
        matrix: the weight seen as [R, K], finite float32 on the CPU.
        settings: sizes, stride, padding, dilation and groups; K is at most 131072.
        activation_bits: 7 or 8; None takes what the instruction set does best: 8 with VNNI and in
            the reference, else 7. Results are the same bits for equal numbers.
    """

    kernel = "conv_int8"
    _packer = staticmethod(_native.pack_int8_conv)

    def __init__(
        self,
        matrix: SparseMatrix,
        settings: ConvSettings,
        activation_bits: int | None = None,
    ) -> None:
        if activation_bits is not None and activation_bits not in ACTIVATION_BITS:
            raise KernelError(
                f"conv_int8 kernel: activation_bits must be 7, 8 or None, got {activation_bits!r}."
            )
        super().__init__(matrix, settings)
        self._options = {"activation_bits": activation_bits or 0}

    @staticmethod
    def weight_fault(settings: ConvSettings, matrix: SparseMatrix) -> str | None:
        """Sums must fit, and values must be finite."""
        if settings.matrix_shape[1] > MAX_COLUMNS:
            return (
                f"at most {MAX_COLUMNS} weights of an output channel fit the 32-bit sums, got"
                f" {settings.matrix_shape[1]}"
            )
        if not bool(matrix.values.isfinite().all()):
            return "values must be finite, found NaN or infinity; they have no int8 scale"
        return None
