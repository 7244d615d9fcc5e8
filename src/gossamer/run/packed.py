# SPDX-License-Identifier: Apache-2.0
"""A linear layer for inference: packed kept weights, and a dense copy only where dense wins."""

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.formats import unpack
from gossamer.formats.base import SparseTensor
from gossamer.formats.bits import pack_bits
from gossamer.nn import Linear
from gossamer.ops.dispatch import Prepared
from gossamer.ops.packed_weight import PackedWeight
from gossamer.patterns import Pattern


@dataclass(frozen=True)
class Choice:
    """What runs a layer for one number of tokens, and why.

    Times are None where nothing was measured (`GOSSAMER_TUNE=off`, or there is no kernel).
    """

    tokens: int
    kernel: str
    dense_us: float | None
    sparse_us: float | None
    why: str

    @property
    def is_sparse(self) -> bool:
        """Whether the sparse kernel runs."""
        return self.kernel != "dense"


class PackedLinear(nn.Module):
    """y = x W^T + b with W packed for a kernel. Inference only.

    The packed weight is a copy: later edits of the layer it came from do not reach it. Calls are
    safe from several threads. A dense weight is held only if some token count runs dense.
    """

    bias: nn.Parameter | None
    dense_weight: torch.Tensor | None

    def __init__(
        self,
        sparse: SparseTensor,
        prepared: Prepared,
        bias: torch.Tensor | None,
        choices: tuple[Choice, ...],
        dense_weight: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = sparse.shape
        self.pattern: Pattern = sparse.pattern
        self.format = sparse.format
        self.prepared = prepared
        self.density = sparse.nnz / max(self.out_features * self.in_features, 1)
        # Some layouts give the kept values back; beside any other the source is held.
        self._source = None if self._lossless() is not None else sparse
        self.choices = tuple(sorted(choices, key=lambda choice: choice.tokens))
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)
        self.register_buffer("dense_weight", dense_weight, persistent=False)
        self._switches = self._find_switches()

    def choice_for(self, tokens: int) -> Choice:
        """The choice measured nearest to `tokens` on a logarithmic scale."""
        best = self.choices[0]
        for choice in self.choices[1:]:
            # The geometric mean of two neighbours is the border between them.
            if best.tokens * choice.tokens <= tokens * tokens:
                best = choice
        return best

    def _find_switches(self) -> tuple[int, ...]:
        """Elements of x at which dense and sparse take turns, from the smallest x on."""
        switches = []
        for before, after in itertools.pairwise(self.choices):
            if before.is_sparse != after.is_sparse:
                tokens = math.isqrt(before.tokens * after.tokens - 1) + 1
                switches.append(tokens * self.in_features)
        return tuple(switches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [..., in] to [..., out]."""
        # Looked up past nn.Module.__getattr__, which a small dense product would notice.
        bias = self._parameters["bias"]
        is_sparse = self.choices[0].is_sparse
        if self._switches:
            numel = x.numel()
            for switch in self._switches:
                if numel >= switch:
                    is_sparse = not is_sparse
            if not is_sparse:
                return F.linear(x, self._buffers["dense_weight"], bias)  # type: ignore[arg-type]
        return self.prepared.run(x, bias, "none")

    def to_compact(self) -> Linear:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        packed = self._lossless()
        if packed is not None:
            values, mask_bits = packed.unpack()
        else:
            assert self._source is not None  # noqa: S101  (set for such layouts)
            weight_RK, mask_RK = unpack(self._source)
            values, mask_bits = weight_RK[mask_RK], pack_bits(mask_RK)
        return Linear(values, mask_bits, self.in_features, self.bias, pattern=self.pattern)

    def _lossless(self) -> PackedWeight | None:
        run = self.prepared.run
        return run if isinstance(run, PackedWeight) and run.is_lossless else None

    def extra_repr(self) -> str:
        """Sizes and the kernel, as nn.Linear prints its own."""
        kernels = sorted({choice.kernel for choice in self.choices})
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}, kernel={'|'.join(kernels)}"
        )
