# SPDX-License-Identifier: Apache-2.0
"""Which native kernels run here: the best set of this CPU, or the one that is forced."""

import functools
import re
from pathlib import Path

import torch  # noqa: F401  (first: the native module must join torch's OpenMP pool, not load another)

from gossamer.errors import KernelError
from gossamer.ops import _native
from gossamer.ops.without_native import why_missing
from gossamer.settings import KERNEL_SETS, forced_kernels

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
