# SPDX-License-Identifier: Apache-2.0
"""A linear layer for inference: packed kept weights, and a dense copy only where dense wins."""

import itertools
import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from gossamer.formats import SparseMatrix, choose_format
from gossamer.ops import Kernel
from gossamer.ops.dispatch import Run
from gossamer.ops.linear import PackedWeight
from gossamer.running.choice import Choice
from gossamer.running.packed.form import PackedForm


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
        dtype: torch.dtype = torch.float32,
        where: str = "a compiled Linear",
    ) -> None:
        super().__init__(matrix.shape, bias, matrix.pattern, choices, dtype, where)
        self.out_features, self.in_features = matrix.shape
        self.runs = runs
        self._nnz = matrix.nnz
        # Some layouts give the kept values back; beside any other the source is held.
        self._source = None if self._lossless() is not None else matrix
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
        packed = self._lossless()
        matrix = self._source if packed is None else packed.unpack()
        assert matrix is not None  # noqa: S101  (held for layouts that are not lossless)
        return matrix

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


class Casting:
    """A run for float32 that takes and gives any floating dtype: for 16-bit layers.

    Products of 16-bit numbers are exact in float32, sums are kept there, and the result is rounded
    to 16 bits once: no dense 16-bit product is more exact than that.

    Args:
        run: what computes.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
    ) -> torch.Tensor:
        """act(x W^T + bias) in the dtype of x."""
        wide = None if bias is None else bias.float()
        return self.run(x.float(), wide, activation).to(x.dtype)


def casting(kernel: Kernel) -> Kernel:
    """The same kernel for a 16-bit layer whose weight is given to it as float32."""
    return replace(kernel, pack=lambda problem: Casting(kernel.pack(problem)))
