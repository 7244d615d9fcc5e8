# SPDX-License-Identifier: Apache-2.0
"""Layers for inference: packed kept weights on kernels, a dense copy only where dense wins."""

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.errors import InputError, WeightIsPacked
from gossamer.formats import SparseMatrix, choose_format
from gossamer.nn.layer_kinds import KINDS
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.stand_in import ConvAttributes, HasNoWeight, Refusal, WeightStandIn
from gossamer.ops import Kernel, Run
from gossamer.ops.conv import PackedConv
from gossamer.ops.linear import PackedWeight
from gossamer.patterns import Pattern
from gossamer.running.choice import Choice


class PackedForm(HasNoWeight, SparseLayer):
    """A layer with a weight packed for kernels. Inference only.

    Packed weights are copies: later edits of the layer they came from do not reach them.

    Args:
        shape: of the weight.
        bias: or None.
        pattern: the rule the mask obeys.
        choices: what was measured, fewest tokens first.
        dtype: of the layer; 16-bit ones are computed in float32.
        where: begins the message of what needs the weight itself.
    """

    form = "packed"
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: tuple[int, ...],
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
        dtype: torch.dtype,
        where: str,
    ) -> None:
        super().__init__()
        self._shape, self._dtype = shape, dtype
        message = (
            f"{where}: its weight is packed for a sparse kernel, and the model computes with"
            " .weight itself. Compile the original with example=, an input of the model: the run of"
            " it finds such layers, and they stay dense. to_compact().to_dense().weight is a copy"
            " of the weight."
        )
        refusal = Refusal(WeightIsPacked, message)
        self._stand_in = WeightStandIn(shape, dtype, torch.device("cpu"), refusal)
        self.pattern = pattern
        self.choices = choices
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)

    @property
    def weight(self) -> torch.Tensor:
        """Answers dtype, device and shape; the numbers are packed."""
        return self._stand_in

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the dense weight."""
        return self._shape

    @abstractmethod
    def packed_matrix(self) -> SparseMatrix:
        """The kept values as float32, as they were packed."""

    def trained(self) -> nn.Parameter:
        """A packed layer has no Parameter to train: InputError says what to do."""
        raise InputError(
            f"{type(self).__name__}: a packed layer is for inference. Train the model it was"
            " compiled from."
        )

    def matrix(self) -> SparseMatrix:
        """The kept values that were packed, in the dtype of the layer."""
        held = self.packed_matrix()
        positions = replace(held.positions, pattern=self.pattern)
        # A 16-bit value is the same in 32 bits.
        return SparseMatrix(positions, held.values.to(self._dtype))

    def to_compact(self) -> Any:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        held, kind = self.matrix(), KINDS[self.kind]
        values, bits = held.values.clone(), held.positions.bits().clone()
        return kind.compact(values, bits, kind.settings(self), self.bias, pattern=self.pattern)


class PackedConv2d(ConvAttributes, PackedForm):
    """`nn.Conv2d` with a weight packed for a kernel. Inference only.

    Images of another size than the measured one run on the sparse kernel too; the first call with a
    new size packs the weight once more.
    """

    kind = "conv"

    def __init__(
        self,
        packed: PackedConv,
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
        dtype: torch.dtype,
        where: str = "a compiled Conv2d",
    ) -> None:
        super().__init__(packed.settings.weight_shape, bias, pattern, choices, dtype, where)
        self.packed, self.settings = packed, packed.settings

    def packed_matrix(self) -> SparseMatrix:
        """The kept values as float32, as they were packed."""
        return self.packed.matrix

    def forward(
        self, x: torch.Tensor, added: torch.Tensor | None = None, activation: str = "none"
    ) -> torch.Tensor:
        """The convolution of x [N, C, H, W] or [C, H, W]; fused_convs.py passes the rest."""
        bias = self._parameters["bias"]
        if self._dtype is torch.float32:
            return self.packed(x, bias, activation, added)
        floats = [None if tensor is None else tensor.float() for tensor in (bias, added)]
        return self.packed(x.float(), floats[0], activation, floats[1]).to(x.dtype)

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Conv2d prints its own."""
        s = self.settings
        return (
            f"{s.in_channels}, {s.out_channels}, kernel_size={s.kernel_size}, stride={s.stride},"
            f" padding={s.padding}, groups={s.groups}, bias={self.bias is not None},"
            f" density={self.density:.4g}, kernel={self.packed.kernel}"
        )


class PackedLinear(PackedForm):
    """y = x W^T + b with W packed for the kernels that won. Inference only.

    `runs` holds the packed weight of each kernel named in `choices`. Calls are safe from several
    threads. A dense weight is held only if some token count runs dense. `dtype` is that of the
    layer: a 16-bit one is given float32 in `matrix`, and runs that cast (`Casting`).
    """

    kind = "linear"
    dense_copy: torch.Tensor | None

    def __init__(
        self,
        matrix: SparseMatrix,
        runs: dict[str, Run],
        bias: torch.Tensor | None,
        choices: tuple[Choice, ...],
        dense_copy: torch.Tensor | None,
        dtype: torch.dtype,
        where: str,
    ) -> None:
        super().__init__(matrix.shape, bias, matrix.pattern, choices, dtype, where)
        self.out_features, self.in_features = matrix.shape
        self.runs = runs
        self._nnz = matrix.nnz
        inner = (run.run if isinstance(run, Casting) else run for run in runs.values())
        packed = (run for run in inner if isinstance(run, PackedWeight))
        # Some layouts give the kept values back; beside any other the source is held.
        self._source = next((weight for weight in packed if weight.is_lossless), matrix)
        self.register_buffer("dense_copy", dense_copy, persistent=False)
        self._switches = self._find_switches()

    def choice_for(self, tokens: int) -> Choice:
        """The choice measured nearest to `tokens` on a logarithmic scale."""
        best = self.choices[0]
        for choice in self.choices[1:]:
            # The geometric mean of two neighbours is the border between them.
            if best.tokens * choice.tokens <= tokens * tokens:
                best = choice
        return best

    def _find_switches(self) -> tuple[tuple[int, Run | None], ...]:
        """(elements of x, what runs from there on): None stands for dense."""
        switches = [(0, self.runs.get(self.choices[0].kernel))]
        for before, after in itertools.pairwise(self.choices):
            if before.kernel != after.kernel:
                tokens = math.isqrt(before.tokens * after.tokens - 1) + 1
                switches.append((tokens * self.in_features, self.runs.get(after.kernel)))
        return tuple(switches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [..., in] to [..., out]."""
        # Looked up past nn.Module.__getattr__, which a small dense product would notice.
        bias = self._parameters["bias"]
        run = self._switches[0][1]
        if len(self._switches) > 1:
            numel = x.numel()
            for start, later in self._switches:
                if numel >= start:
                    run = later
        if run is None:
            return F.linear(x, self._buffers["dense_copy"], bias)  # type: ignore[arg-type]
        return run(x, bias, "none")

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self._nnz

    @property
    def format(self) -> str:
        """What a file would hold the weight in."""
        return choose_format(self.matrix_shape, self._nnz, 4, self.pattern)

    def packed_matrix(self) -> SparseMatrix:
        """The kept values as float32: unpacked, or the source that is held."""
        source = self._source
        return source.unpack() if isinstance(source, PackedWeight) else source

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Linear prints its own."""
        kernels = sorted({choice.kernel for choice in self.choices})
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}, kernel={'|'.join(kernels)}"
        )


@dataclass(frozen=True)
class Casting:
    """A run for float32 that takes and gives any floating dtype: for 16-bit layers.

    Products of 16-bit numbers are exact in float32, sums are kept there, and the result is rounded
    to 16 bits once: no dense 16-bit product is more exact than that.

    Args:
        run: what computes.
    """

    run: Run

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
        """act(x W^T + bias) in the dtype of x."""
        return self.run(x.float(), None if bias is None else bias.float(), activation).to(x.dtype)


def casting(kernel: Kernel) -> Kernel:
    """The same kernel for a 16-bit layer whose weight is given to it as float32."""
    return replace(kernel, pack=lambda problem: Casting(kernel.pack(problem)))
