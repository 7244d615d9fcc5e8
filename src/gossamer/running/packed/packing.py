# SPDX-License-Identifier: Apache-2.0
"""The packed form of one layer of a model that is compiled, where a sparse kernel measures faster.

`PACKERS` says how layers of each kind get it: a new kind has a function and a line there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.nn.batch import Shapes
from gossamer.nn.layer_kinds import kind_name, kind_of, title_of
from gossamer.nn.layer_weights import matrix_of, weight_of
from gossamer.nn.layers.tables import packed_table
from gossamer.ops import Problem, kernels_for, report_missing
from gossamer.ops.conv import ConvSettings, PackedConv, why_not
from gossamer.running.choice import Choice, Chooser, Contenders, CostKey, Rival
from gossamer.running.packed.experts import PackedExperts
from gossamer.running.packed.layers import PackedConv2d, PackedLinear, casting

# A dense layer with fewer zeros than this is left alone: no kernel gains from it.
MIN_SPARSITY = 0.1
NO_EXAMPLE = "the size of its images is not known: pass example=, an input of the model, to compile"
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Job:
    """A layer that could gain from its zeros.

    Attributes:
        name: of the layer, for messages.
        layer: in any form.
        matrix: its kept weights as float32; None for a table.
        dtype: of the layer itself; 16-bit ones are computed in float32.
        counts: token counts to choose for.
        shapes: of the inputs of layers, as far as an example has shown them.
        chooser: decides dense or sparse.
        precision: the lowest that kernels may compute in.
    """

    name: str
    layer: Any
    matrix: Any
    dtype: torch.dtype
    counts: tuple[int, ...]
    shapes: Shapes
    chooser: Chooser
    precision: str

    @classmethod
    def of(
        cls,
        name: str,
        layer: nn.Module,
        counts: tuple[int, ...],
        shapes: Shapes,
        chooser: Chooser,
        precision: str,
    ) -> "Job":
        """The weight is read from the layer."""
        kind = kind_of(layer)
        if kind is not None and not kind.has_masks:
            return cls(name, layer, None, torch.float32, counts, shapes, chooser, precision)
        matrix = matrix_of(layer)
        return cls(name, layer, matrix, matrix.values.dtype, counts, shapes, chooser, precision)


@dataclass(frozen=True)
class StaysDense:
    """A layer that is not packed: dense measured faster, or `reason` says why it cannot be."""

    choices: tuple[Choice, ...] = ()
    reason: str = ""


def pack_layer(job: Job) -> nn.Module | StaysDense:
    """The inference form of one layer."""
    if job.matrix is not None:
        where = job.matrix.values.device
        if job.dtype not in (torch.float32, *_HALVES) or where.type != "cpu":
            reason = f"kernels are float32 on the CPU, this is {job.dtype} on {where}"
            return StaysDense(reason=reason)
        job = replace(job, matrix=replace(job.matrix, values=job.matrix.values.float()))
    packer = PACKERS.get(kind_name(job.layer))
    if packer is None:
        return StaysDense(reason=f"{title_of(job.layer)} layers have no packed form")
    return packer(job)


def _pack_linear(job: Job) -> nn.Module | StaysDense:
    """The inference form of one Linear."""
    kernels = kernels_for("linear", Problem(job.matrix, job.precision))
    if not kernels:
        report_missing("linear", str(job.matrix.pattern), job.name)
    if job.dtype in _HALVES:
        kernels = tuple(casting(kernel) for kernel in kernels)
    weight_RK = weight_of(job.layer)
    contenders = Contenders(job.matrix, weight_RK, kernels)
    choices = tuple(job.chooser.choose(contenders, count) for count in job.counts)
    chosen = {choice.kernel for choice in choices}
    if chosen == {"dense"}:
        return StaysDense(choices)
    runs = {k.name: contenders.packed(k) for k in kernels if k.name in chosen}
    held = weight_RK if "dense" in chosen else None
    choices = tuple(choice.of_dtype(job.dtype) for choice in choices)
    return PackedLinear(job.matrix, runs, job.layer.bias, choices, held, job.dtype, job.name)


def _pack_experts(job: Job) -> nn.Module | StaysDense:
    """The inference form of a layer of experts: each runs on the kernels that won for one of them.

    They have one shape and are pruned alike; the one that keeps most is raced. Counts are tokens of
    one expert.
    """
    matrices = job.matrix.unstack(job.layer.num_experts)
    fullest = max(range(len(matrices)), key=lambda expert: matrices[expert].nnz)
    weights = weight_of(job.layer).chunk(len(matrices))
    kernels = kernels_for("linear", Problem(matrices[fullest], job.precision))
    if not kernels:
        report_missing("linear", str(job.matrix.pattern), job.name)
    if job.dtype in _HALVES:
        kernels = tuple(casting(kernel) for kernel in kernels)
    contenders = [Contenders(*pair, kernels) for pair in zip(matrices, weights, strict=True)]
    choices = tuple(job.chooser.choose(contenders[fullest], count) for count in job.counts)
    chosen = {choice.kernel for choice in choices}
    if chosen == {"dense"}:
        return StaysDense(choices)
    choices = tuple(choice.of_dtype(job.dtype) for choice in choices)
    bias_R = job.layer.bias
    biases = [None] * len(matrices) if bias_R is None else bias_R.detach().chunk(len(matrices))
    parts = [
        PackedLinear(
            own.matrix,
            {kernel.name: own.packed(kernel) for kernel in kernels if kernel.name in chosen},
            bias,
            choices,
            own.weight if "dense" in chosen else None,
            job.dtype,
            job.name,
        )
        for own, bias in zip(contenders, biases, strict=True)
    ]
    return PackedExperts(tuple(parts), bias_R, choices, job.dtype, job.name)


def _pack_conv(job: Job) -> nn.Module | StaysDense:
    """The inference form of a convolution with zeros."""
    settings = ConvSettings.of(job.layer)
    reason = why_not(settings)
    if reason is not None:
        return StaysDense(reason=f"the convolution kernel cannot run it: {reason}")
    if id(job.layer) not in job.shapes:
        return StaysDense(reason=NO_EXAMPLE)
    problem = Problem(job.matrix, job.precision, geometry=settings)
    rivals = {kernel.name: kernel.pack(problem) for kernel in kernels_for("conv", problem)}
    choice = _choose_conv(rivals, settings, job)
    if not choice.is_sparse:
        return StaysDense((choice,))
    return PackedConv2d(
        rivals[choice.kernel],
        job.layer.bias,
        job.matrix.pattern,
        (choice.of_dtype(job.dtype),),
        job.dtype,
        job.name,
    )


def _choose_conv(rivals: dict[str, PackedConv], settings: ConvSettings, job: Job) -> Choice:
    shape, pattern, weight = job.shapes[id(job.layer)], job.matrix.pattern, weight_of(job.layer)
    height, width = settings.out_size((shape[-2], shape[-1]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(job.dtype)
    bias = weight.new_zeros(settings.out_channels)
    density = job.matrix.nnz / max(weight.numel(), 1)
    tokens = max(torch.Size(shape[:-3]).numel(), 1) * height * width

    def rival(name: str, packed: PackedConv) -> Rival:
        cost_name = _conv_cost_name(name, settings, shape, job.dtype)
        key = CostKey(cost_name, *settings.matrix_shape, str(pattern), density, tokens)
        # The layer that would run, casts included.
        layer = PackedConv2d(packed, bias, pattern, (), job.dtype)
        return Rival(name, key, lambda: layer(x))

    return job.chooser.choose_among(
        [rival(name, packed) for name, packed in rivals.items()],
        lambda: settings.apply(x, weight, bias),
    )


def _conv_cost_name(
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


def _pack_table(job: Job) -> nn.Module | StaysDense:
    """The inference form of a table: its codes, which lookups read in place. Nothing is raced.

    The codes are what the table was trained with, so no precision has to be allowed.
    """
    rows = job.layer.rows()
    if not rows.is_native():
        return StaysDense(reason=f"kernels read tables on the CPU, this is on {rows.data.device}")
    packed = packed_table(job.layer)
    (kernel,) = kernels_for("table", Problem(packed.rows(), "int4"))
    dense = rows.num_ids * rows.width * 4
    why = f"rows as they were trained, {dense / max(packed.nbytes, 1):.2g}x smaller than float32"
    packed.choices = tuple(Choice(count, kernel.name, why) for count in job.counts[:1])
    return packed


PACKERS: dict[str, Callable[[Job], nn.Module | StaysDense]] = {
    "linear": _pack_linear,
    "experts": _pack_experts,
    "conv": _pack_conv,
    "table": _pack_table,
}
