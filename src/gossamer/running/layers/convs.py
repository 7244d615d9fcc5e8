# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a model that is compiled: packed where a sparse kernel measures faster."""

import torch
from torch import nn

from gossamer.nn.layer_kinds import weight_of
from gossamer.ops.conv import ConvSettings, PackedConv
from gossamer.ops.conv.fp32 import why_not
from gossamer.ops.dispatch import Problem, kernels_for
from gossamer.running.layers.choose import Rival
from gossamer.running.layers.cost_table import CostKey
from gossamer.running.layers.job import Job, StaysDense
from gossamer.running.layers.packed import Choice
from gossamer.running.layers.packed_conv import PackedConv2d

NO_EXAMPLE = "the size of its images is not known: pass example=, an input of the model, to compile"


def pack_conv(job: Job) -> nn.Module | StaysDense:
    """The inference form of a convolution with zeros."""
    settings = ConvSettings.of(job.layer)
    reason = why_not(settings)
    if reason is not None:
        return StaysDense(reason=f"the convolution kernel cannot run it: {reason}")
    if id(job.layer) not in job.shapes:
        return StaysDense(reason=NO_EXAMPLE)
    problem = Problem(job.matrix, job.precision, geometry=settings)
    rivals = {kernel.name: kernel.pack(problem) for kernel in kernels_for("conv", problem)}
    choice = _choose(rivals, settings, job)
    if not choice.is_sparse:
        return StaysDense((choice,))
    choices, bias = (choice.of_dtype(job.dtype),), job.layer.bias
    return PackedConv2d(
        rivals[choice.kernel], bias, job.matrix.pattern, choices, job.dtype, job.name
    )


def _choose(rivals: dict[str, PackedConv], settings: ConvSettings, job: Job) -> Choice:
    shape, pattern, weight = job.shapes[id(job.layer)], job.matrix.pattern, weight_of(job.layer)
    height, width = settings.out_size((shape[-2], shape[-1]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(job.dtype)
    bias = weight.new_zeros(settings.out_channels)
    rows, columns = settings.matrix_shape

    def rival(name: str, packed: PackedConv) -> Rival:
        key = CostKey(
            kernel=_cost_name(name, settings, shape, job.dtype),
            rows=rows,
            columns=columns,
            pattern=str(pattern),
            density=job.matrix.nnz / max(weight.numel(), 1),
            tokens=max(torch.Size(shape[:-3]).numel(), 1) * height * width,
            threads=torch.get_num_threads(),
        )
        # The layer that would run, casts included.
        layer = PackedConv2d(packed, bias, pattern, (), job.dtype)
        return Rival(name, key, lambda: layer(x))

    return job.chooser.choose_among(
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
