# SPDX-License-Identifier: Apache-2.0
"""A convolution inside the native call of a whole network: shifts of images by whole pixels."""

from dataclasses import dataclass

from gossamer.errors import KernelError
from gossamer.formats.bits import check_bits
from gossamer.ops import _native
from gossamer.ops.conv.settings import ConvSettings, Pair
from gossamer.ops.dispatch import Problem
from gossamer.ops.packed import float_array, optional_array

Position = tuple[int, int, int]


def positions_of(settings: ConvSettings, size: Pair) -> tuple[list[Pair], list[Position]]:
    """The phases that the positions of a kernel read, and where each position looks.

    Raises:
        KernelError: shifts of whole images cannot say what this convolution reads.
    """
    padding, stride = settings.even_padding(), settings.stride
    reason = None
    if padding is None or settings.groups != 1:
        reason = "it needs zeros on both sides and one group"
    elif stride not in ((1, 1), (2, 2)):
        reason = f"it needs a stride of 1 or 2, not {stride}"
    elif stride == (1, 1) and settings.out_size(size) != size:
        reason = "it needs an output of the size of its input"
    if reason is not None or padding is None:
        raise KernelError(f"conv net: {reason}.")
    looks = [
        (row * settings.dilation[0] - padding[0], column * settings.dilation[1] - padding[1])
        for row in range(settings.kernel_size[0])
        for column in range(settings.kernel_size[1])
    ]
    step = stride[0]
    phases = sorted({(row % step, column % step) for row, column in looks})
    out = settings.out_size(size)
    if step == 2 and any(
        (s - p + 1) // 2 > o for phase in phases for s, p, o in zip(size, phase, out, strict=True)
    ):
        raise KernelError("conv net: the last pixels of a phase would be zeros of its images.")
    return phases, [
        (phases.index((row % step, column % step)), row // step, column // step)
        for row, column in looks
    ]


@dataclass(frozen=True, eq=False)
class NetWeight:
    """The weight of a problem for `PackedConvNet`, which packs it when it is added to a network.

    Args:
        problem: its matrix is float32 on the CPU, its geometry one that `fits_net`.
    """

    problem: Problem

    def add_to(
        self,
        net: _native.ConvNet,
        source: int,
        target: int,
        *,
        relu: bool,
        added: int | None,
        added_first: int,
    ) -> None:
        """Let `net` compute the convolution of value `source`, or of its phases, as `target`."""
        problem = self.problem
        settings: ConvSettings = problem.geometry
        bits = problem.matrix.positions.bits()
        check_bits(bits, settings.matrix_shape, "conv net")
        phases, positions = positions_of(settings, problem.image or (0, 0))
        net.add_conv(
            source,
            target,
            float_array(problem.matrix.floats()),
            bits.contiguous().numpy(),
            *settings.matrix_shape,
            bias=optional_array(problem.bias),
            phases=len(phases),
            positions=positions,
            relu=relu,
            added=-1 if added is None else added,
            added_first=added_first,
        )


def fits_net(problem: Problem) -> bool:
    """Whether shifts of whole images can say what a convolution of known images reads."""
    if problem.image is None:
        return False
    try:
        positions_of(problem.geometry, problem.image)
    except KernelError:
        return False
    return True
