# SPDX-License-Identifier: Apache-2.0
"""Which native kernels this machine runs, and whether they compute what they should.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import functools
import re
from pathlib import Path

from gossamer.errors import KernelError
from gossamer.ops import _native
from gossamer.ops.without_native import why_missing
from gossamer.settings import KERNEL_SETS, forced_kernels

__all__ = [
    "active_kernels",
    "available_extensions",
    "available_kernels",
    "cpu_name",
    "kernel_error",
]


NO_KERNELS = "none (torch alone)"


@functools.cache
def available_kernels() -> tuple[str, ...]:
    """Kernel sets that this build holds and this CPU can run, best first."""
    return tuple(_native.available_kernels())


@functools.cache
def available_extensions() -> tuple[str, ...]:
    """Instructions beyond the sets that single kernels use: avx512vnni, -bf16, -vbmi2."""
    return tuple(_native.available_extensions())


def active_kernels() -> str:
    """The set in use: `GOSSAMER_KERNELS` if given, else the best one; `NO_KERNELS` if none is."""
    forced = forced_kernels()
    if why_missing() is not None:
        if forced is not None:
            raise KernelError(f"GOSSAMER_KERNELS={forced}: {why_missing()}. Unset the variable.")
        return NO_KERNELS
    if forced is None:
        return available_kernels()[0]
    if forced not in available_kernels():
        raise KernelError(
            f"GOSSAMER_KERNELS={forced}: this CPU cannot run these kernels; it has"
            f" {', '.join(available_kernels())} (of {', '.join(KERNEL_SETS)}). Unset the variable."
        )
    return forced


@functools.cache
def cpu_name() -> str:
    """The processor's model name, which measured choices are filed under."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = [re.search(rf"^{key}\s*:\s*(.*)$", text, re.M) for key in ("model name", "model")]
    return " model ".join(field[1].strip() for field in fields if field) or "unknown CPU"


# Remainders of every block size: fewer than a vector, one more than a panel, several K blocks.
_CASES = ((1, 1, 1), (3, 17, 9), (65, 33, 129), (130, 96, 300))
_DENSITY = 0.2


def kernel_error(kernels: str) -> float:
    """Largest error of a kernel set, in units of the bound that float32 summation allows.

    The bound is K * eps * sum |x w|; a value above 1 means wrong results.
    """
    return max(_case_error(kernels, *case) for case in _CASES)


def _case_error(kernels: str, num_tokens: int, num_rows: int, num_columns: int) -> float:
    import torch

    from gossamer.formats.bits import pack_bits
    from gossamer.ops.addresses import address

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
