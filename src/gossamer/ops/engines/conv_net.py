# SPDX-License-Identifier: Apache-2.0
"""A whole convolutional network in one native call (native/include/gossamer/conv_net.hpp).

Legend: N images, C channels, H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError, KernelMissing
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.conv import ConvSettings, NetWeight, Pair, positions_of
from gossamer.ops.dispatch import Problem, engine_kernel, outside_kernels
from gossamer.ops.kernels import active_kernels
from gossamer.ops.packed import Packed
from gossamer.out_of_memory import names_memory

__all__ = [
    "ConvStep",
    "NetPlan",
    "NetValue",
    "PackedConvNet",
    "PoolStep",
]


@dataclass(frozen=True)
class NetValue:
    """An activation: its channels, height and width, and whether it is never negative."""

    channels: int
    size: Pair
    is_positive: bool


@dataclass(frozen=True)
class ConvStep:
    """`act(conv2d(source) + bias + added)`; numbers are those of values.

    Attributes:
        matrix: the weight seen as [R, K].
        added: of the target's size, or None; its channels are added from `added_first` on.
        layer: the name of the layer it stands for.
    """

    source: int
    target: int
    settings: ConvSettings
    matrix: SparseMatrix
    bias: torch.Tensor | None
    relu: bool
    added: int | None = None
    added_first: int = 0
    layer: str = "conv net"

    def problem(self, image: Pair, precision: str = "fp32") -> Problem:
        """What a kernel has to pack, for images of one size."""
        return Problem(
            self.matrix,
            precision,
            geometry=self.settings,
            image=image,
            engine="conv_net",
            bias=self.bias,
        )


@dataclass(frozen=True)
class PoolStep:
    """The largest pixel of each window; a window of one pixel with stride 2 takes every other."""

    source: int
    target: int
    settings: ConvSettings


@dataclass(frozen=True)
class NetPlan:
    """Values, the first of which is the input, and steps in order.

    Attributes:
        result: the value that comes out.
        mean: whether it comes out as the mean of each channel, [N, C].
    """

    values: tuple[NetValue, ...]
    steps: tuple[ConvStep | PoolStep, ...]
    result: int
    mean: bool


class PackedConvNet(Packed):
    """A network packed for the active kernel set; immutable, safe to call from threads.

    Args:
        plan: what it computes.
        scales: None for fp32; for int8 arithmetic the largest magnitude of each value, which is
            what its highest code stands for: anything above is cut off.

    Attributes:
        kernels: which kernel runs each layer, by its name.
        not_usable: plug-ins that could run a layer, but not inside this call.
    """

    lives = "a packed network lives"

    @names_memory("packing a network", "Free memory.")
    def __init__(self, plan: NetPlan, scales: Sequence[float] | None = None) -> None:
        self.plan = plan
        self.precision = "fp32" if scales is None else "int8"
        self._native = _native.ConvNet(active_kernels(), scales is not None)
        # Taking pixels out of a value leaves their codes as they are.
        origin = {step.target: step.source for step in plan.steps if isinstance(step, PoolStep)}
        self._origin = list(range(len(plan.values)))
        for number in self._origin:
            self._origin[number] = self._origin[origin.get(number, number)]
        self._tops = scales
        self._shapes: dict[Pair, int] = {}
        self.kernels: dict[str, str] = {}
        self.not_usable: set[str] = set()
        pads = self._pads()
        for value in plan.values:
            if value.size not in self._shapes:
                self._shapes[value.size] = self._native.add_shape(*value.size, pads[value.size])
        for number, value in enumerate(plan.values):
            self._add_value(number, value.channels, value.size)
        for step in plan.steps:
            self._add(step)
        self._native.finish(plan.result, plan.mean)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._native.nbytes

    @names_memory("conv net", "Run fewer images.")
    def __call__(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        """The result for images of the planned size, as a new tensor; no gradients."""
        first, last = self.plan.values[0], self.plan.values[self.plan.result]
        shape = (first.channels, *first.size)
        if x_NCHW.dtype is not torch.float32 or x_NCHW.shape[1:] != shape:
            raise InputError(
                f"conv net: x must be float32 [N, {', '.join(map(str, shape))}] on the CPU, got"
                f" {x_NCHW.dtype} {list(x_NCHW.shape)} on {x_NCHW.device}."
            )
        address(x_NCHW, "conv net")
        x_NCHW = x_NCHW.contiguous()
        more = () if self.plan.mean else last.size
        y = x_NCHW.new_empty(len(x_NCHW), last.channels, *more)
        self._native.run(address(x_NCHW, "conv net"), len(x_NCHW), address(y, "conv net"))
        return y

    def _pads(self) -> dict[Pair, int]:
        """Zeros between the rows of images, by size: as far as any kernel looks."""
        pads = dict.fromkeys((value.size for value in self.plan.values), 0)
        for step in self.plan.steps:
            size = self.plan.values[step.target].size
            _, positions = positions_of(step.settings, self.plan.values[step.source].size)
            reach = max(max(abs(row), abs(column)) for _, row, column in positions)
            pads[size] = max(pads[size], reach)
        return pads

    def _add_value(self, number: int, channels: int, size: Pair) -> int:
        """A value of this size with the code of value `number`."""
        scale, zero = 0.0, 0
        if self._tops is not None:
            number = self._origin[number]
            bits, is_positive = self._native.activation_bits, self.plan.values[number].is_positive
            highest = 2**bits - 1 if is_positive else 2 ** (bits - 1) - 1
            scale = (self._tops[number] or 1.0) / highest
            zero = 0 if is_positive else 2 ** (bits - 1)
        return self._native.add_value(self._shapes[size], channels, scale, zero)

    def _add(self, step: ConvStep | PoolStep) -> None:
        source, target = self.plan.values[step.source], self.plan.values[step.target]
        phases, positions = positions_of(step.settings, source.size)
        taken, is_last = step.source, False
        if step.settings.stride == (2, 2):
            is_last = isinstance(step, PoolStep) and step.settings.kernel_size == (1, 1)
            taken = step.target
            if not is_last:
                taken = self._add_value(step.source, source.channels * len(phases), target.size)
            self._native.add_phases(step.source, taken, phases)
        if isinstance(step, PoolStep):
            if not is_last:
                self._native.add_largest(taken, step.target, len(phases), positions)
            return
        self._pack(step, source.size).add_to(
            self._native,
            taken,
            step.target,
            relu=step.relu,
            added=step.added,
            added_first=step.added_first,
        )

    def _pack(self, step: ConvStep, image: Pair) -> NetWeight:
        problem = step.problem(image, self.precision)
        kernel = engine_kernel("conv", problem, step.layer)
        if kernel.precision != self.precision:
            raise KernelMissing(
                f"{step.layer}: a network computes all its convolutions in one precision, and no"
                f" kernel packs this one for {self.precision}."
            )
        self.kernels[step.layer] = kernel.name
        self.not_usable.update(outside_kernels("conv", problem))
        weight: NetWeight = kernel.native_weight(problem)
        return weight
