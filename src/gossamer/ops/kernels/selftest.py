# SPDX-License-Identifier: Apache-2.0
"""Every kernel set of this machine against a float64 oracle, in well under a second.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import torch

from gossamer.formats.bits import pack_bits
from gossamer.ops import _native
from gossamer.ops.addresses import address

# Remainders of every block size: fewer than a vector, one more than a panel, several K blocks.
_CASES = ((1, 1, 1), (3, 17, 9), (65, 33, 129), (130, 96, 300))
_DENSITY = 0.2


def kernel_error(kernels: str) -> float:
    """Largest error of a kernel set, in units of the bound that float32 summation allows.

    The bound is K * eps * sum |x w|; a value above 1 means wrong results.
    """
    return max(_case_error(kernels, *case) for case in _CASES)


def _case_error(kernels: str, num_tokens: int, num_rows: int, num_columns: int) -> float:
    generator = torch.Generator().manual_seed(num_tokens)
    x_TK = torch.randn(num_tokens, num_columns, generator=generator)
    w_RK = torch.randn(num_rows, num_columns, generator=generator)
    bias_R = torch.randn(num_rows, generator=generator)
    mask_RK = torch.rand(num_rows, num_columns, generator=generator) < _DENSITY
    w_RK = w_RK * mask_RK
    arrays = w_RK[mask_RK].numpy(), pack_bits(mask_RK).numpy()
    panel = _native.pack_panel(*arrays, num_rows, num_columns, kernels)
    y_TR = torch.full((num_tokens, num_rows), float("nan"))
    panel.run(
        address(x_TK, "self-test"),
        num_tokens,
        num_columns,
        address(y_TR, "self-test"),
        num_rows,
        address(bias_R, "self-test"),
        0,
    )
    x64, w64, bias64 = x_TK.double(), w_RK.double(), bias_R.double()
    oracle = x64 @ w64.T + bias64
    bound = (
        (num_columns + 1)
        * torch.finfo(torch.float32).eps
        * (x64.abs() @ w64.abs().T + bias64.abs())
    )
    worst = ((y_TR.double() - oracle).abs() / bound.clamp_min(1e-30)).max()
    return float(torch.nan_to_num(worst, nan=float("inf")))
