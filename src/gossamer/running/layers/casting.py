# SPDX-License-Identifier: Apache-2.0
"""16-bit layers on float32 kernels: the input is cast up, the result back.

Products of 16-bit numbers are exact in float32, sums are kept there, and the result is rounded to
16 bits once: no dense 16-bit product is more exact than that.
"""

from dataclasses import replace

import torch

from gossamer.ops.dispatch import Kernel, Run

HALVES = (torch.bfloat16, torch.float16)


class Casting:
    """A run for float32 that takes and gives any floating dtype.

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
