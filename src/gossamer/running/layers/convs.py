# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a model that is compiled: packed where a sparse kernel measures faster."""

from collections.abc import Callable

import torch
from torch import nn

from gossamer.formats.bits import pack_bits
from gossamer.nn import Conv2d, MaskedConv2d
from gossamer.nn.input_shapes import Shapes
from gossamer.ops.conv import int8 as conv_int8
from gossamer.ops.conv.fp32 import KERNEL, PackedConv, why_not
from gossamer.ops.conv.settings import ConvSettings
from gossamer.ops.dispatch import allowed_precisions
from gossamer.patterns import Pattern, detect_pattern
from gossamer.running.layers.casting import HALVES
from gossamer.running.layers.choose import Chooser, Rival
from gossamer.running.layers.cost_table import CostKey
from gossamer.running.layers.packed import Choice
from gossamer.running.layers.packed_conv import PackedConv2d

StayDense = Callable[[nn.Module, str], nn.Module]

NO_EXAMPLE = "the size of its images is not known: pass example=, an input of the model, to compile"


def convert_conv(
    where: str,
    module: nn.Conv2d | Conv2d,
    shapes: Shapes,
    chooser: Chooser,
    stay_dense: StayDense,
    precision: str,
) -> nn.Module:
    """The inference form of a convolution with zeros."""
    if isinstance(module, MaskedConv2d | Conv2d):
        mask_RK, pattern = module.mask(), module.pattern
        dense = module.to_dense()
    else:
        dense = module
        mask_RK = (module.weight != 0).flatten(1)
        pattern = detect_pattern(mask_RK)
    weight, settings = dense.weight.detach(), ConvSettings.of(module)
    if weight.dtype not in (torch.float32, *HALVES) or weight.device.type != "cpu":
        reason = f"kernels are float32 on the CPU, this is {weight.dtype} on {weight.device}"
        return stay_dense(module, reason)
    reason_not = why_not(settings)
    if reason_not is not None:
        return stay_dense(module, f"the convolution kernel cannot run it: {reason_not}")
    if id(module) not in shapes:
        return stay_dense(module, NO_EXAMPLE)
    values, mask_bits = weight.float().flatten(1)[mask_RK], pack_bits(mask_RK)
    rivals = {KERNEL: PackedConv(values, mask_bits, settings)}
    if "int8" in allowed_precisions(precision) and conv_int8.why_not(settings, values) is None:
        rivals[conv_int8.KERNEL] = conv_int8.PackedInt8Conv(values, mask_bits, settings)
    choice = _choose(rivals, weight, pattern, shapes[id(module)], chooser)
    if choice.is_sparse:
        choices = (choice.of_dtype(weight.dtype),)
        packed = rivals[choice.kernel]
        return PackedConv2d(packed, dense.bias, pattern, choices, weight.dtype, where)
    stock = dense.eval().requires_grad_(False)
    stock.pattern, stock.choices = pattern, (choice,)  # type: ignore[assignment]
    return stock


def _choose(
    rivals: dict[str, PackedConv],
    weight: torch.Tensor,
    pattern: Pattern,
    shape: tuple[int, ...],
    chooser: Chooser,
) -> Choice:
    settings = rivals[KERNEL].settings
    height, width = settings.out_size((shape[-2], shape[-1]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    bias = weight.new_zeros(settings.out_channels)
    rows, columns = settings.matrix_shape

    def rival(name: str, packed: PackedConv) -> Rival:
        key = CostKey(
            kernel=_cost_name(name, settings, shape, weight.dtype),
            rows=rows,
            columns=columns,
            pattern=str(pattern),
            density=packed.values.numel() / max(weight.numel(), 1),
            tokens=max(torch.Size(shape[:-3]).numel(), 1) * height * width,
            threads=torch.get_num_threads(),
        )
        # The layer that would run, casts included.
        layer = PackedConv2d(packed, bias, pattern, (), weight.dtype)
        return Rival(name, key, lambda: layer(x))

    return chooser.choose_among(
        [rival(name, packed) for name, packed in rivals.items()],
        lambda: settings.apply(x, weight, bias),
    )


def _cost_name(
    kernel: str, settings: ConvSettings, shape: tuple[int, ...], dtype: torch.dtype
) -> str:
    """The kernel with everything a measurement depends on, for the cost table."""
    parts = {
        "k": settings.kernel_size,
        "s": settings.stride,
        "p": settings.even_padding() or (0, 0),
        "d": settings.dilation,
        "i": shape[-2:],
    }
    texts = [f"{letter}{a}x{b}" for letter, (a, b) in parts.items()]
    kind = [] if dtype is torch.float32 else [str(dtype)]
    return "/".join([kernel, *texts, f"g{settings.groups}", *kind])
