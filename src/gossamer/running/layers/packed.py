# SPDX-License-Identifier: Apache-2.0
"""A linear layer for inference: packed kept weights, and a dense copy only where dense wins."""

import itertools
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.errors import WeightIsPacked
from gossamer.formats import SparseMatrix, choose_format
from gossamer.nn import Linear
from gossamer.nn.layers import SparseLayer
from gossamer.nn.layers.weight_stand_in import HasNoWeight, Refusal, WeightStandIn
from gossamer.ops.dispatch import Run
from gossamer.ops.linear import PackedWeight
from gossamer.running.layers.casting import Casting

# A dense layer with fewer zeros than this is left alone: no kernel gains from it.
MIN_SPARSITY = 0.1


@dataclass(frozen=True)
class Choice:
    """What runs a layer for one number of tokens, and why.

    Times are None where nothing was measured (`GOSSAMER_TUNE=off`, or there is no kernel). `spread`
    is how far best times of parts of the race lie apart; `doubt` says what else the machine did if
    it was busy, and such times are not kept.
    """

    tokens: int
    kernel: str
    dense_us: float | None
    sparse_us: float | None
    why: str
    spread: float | None = None
    doubt: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether the sparse kernel runs."""
        return self.kernel != "dense"

    def of_dtype(self, dtype: torch.dtype) -> "Choice":
        """The same, with a word on layers that are computed in another dtype than their own."""
        if dtype is torch.float32 or not self.is_sparse:
            return self
        name = str(dtype).removeprefix("torch.")
        return replace(self, why=f"{self.why}; computed in float32, the weight is {name}")


def packed_stand_in(where: str, shape: tuple[int, ...], dtype: torch.dtype) -> WeightStandIn:
    """What `.weight` of a packed layer gives."""
    message = (
        f"{where}: its weight is packed for a sparse kernel, and the model computes with .weight"
        " itself. Compile the original with example=, an input of the model: the run of it finds"
        " such layers, and they stay dense. to_compact().to_dense().weight is a copy of the weight."
    )
    return WeightStandIn(shape, dtype, torch.device("cpu"), Refusal(WeightIsPacked, message))


class PackedLinear(HasNoWeight, SparseLayer):
    """y = x W^T + b with W packed for the kernels that won. Inference only.

    `runs` holds the packed weight of each kernel named in `choices`. They are copies: later edits
    of the layer they came from do not reach them. Calls are safe from several threads. A dense
    weight is held only if some token count runs dense. `dtype` is that of the layer: a 16-bit one
    has float32 in `matrix`, and runs that cast (`casting.py`).
    """

    kind = "linear"
    form = "packed"
    bias: nn.Parameter | None
    dense_copy: torch.Tensor | None

    def __init__(
        self,
        matrix: SparseMatrix,
        runs: dict[str, Run],
        bias: torch.Tensor | None,
        choices: tuple[Choice, ...],
        dense_copy: torch.Tensor | None,
        dtype: torch.dtype = torch.float32,
        where: str = "a compiled Linear",
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.shape
        self._dtype = dtype
        self._stand_in = packed_stand_in(where, (self.out_features, self.in_features), dtype)
        self.pattern = matrix.pattern
        self.runs = runs
        self._nnz = matrix.nnz
        # Some layouts give the kept values back; beside any other the source is held.
        self._source = None if self._lossless() is not None else matrix
        self.choices = tuple(sorted(choices, key=lambda choice: choice.tokens))
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)
        self.register_buffer("dense_copy", dense_copy, persistent=False)
        self._switches = self._find_switches()

    @property
    def weight(self) -> torch.Tensor:
        """Answers dtype, device and shape; the numbers are packed."""
        return self._stand_in

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
    def weight_shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return self.out_features, self.in_features

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self._nnz

    @property
    def format(self) -> str:
        """What a file would hold the weight in."""
        return choose_format((self.out_features, self.in_features), self._nnz, 4, self.pattern)

    def matrix(self) -> SparseMatrix:
        """The kept values that were packed, in the dtype of the layer."""
        packed = self._lossless()
        matrix = self._source if packed is None else packed.unpack()
        assert matrix is not None  # noqa: S101  (held for layouts that are not lossless)
        positions = replace(matrix.positions, pattern=self.pattern)
        # A 16-bit value is the same in 32 bits.
        return SparseMatrix(positions, matrix.values.to(self._dtype))

    def to_compact(self) -> Linear:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        held = self.matrix()
        bits, width = held.positions.bits(), self.in_features
        return Linear(held.values, bits, width, self.bias, pattern=self.pattern)

    def _lossless(self) -> PackedWeight | None:
        runs = (run.run if isinstance(run, Casting) else run for run in self.runs.values())
        packed = (run for run in runs if isinstance(run, PackedWeight))
        return next((weight for weight in packed if weight.is_lossless), None)

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Linear prints its own."""
        kernels = sorted({choice.kernel for choice in self.choices})
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}, kernel={'|'.join(kernels)}"
        )
